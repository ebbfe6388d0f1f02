"""How the HTTP server is set."""

import dataclasses
from dataclasses import dataclass

from bert4rec_tf.config.settings import Settings, setting
from bert4rec_tf.foundation.errors import UserError


@dataclass(frozen=True)
class ServerSettings(Settings):
    """What `bert4rec serve` can be told. Every field is a flag of the same name."""

    model: str = dataclasses.field(
        metadata={"help": "folder of a SavedModel, or of numbered folders that each hold a version"}
    )
    name: str = setting("bert4rec", "name of the model in the addresses")
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all of this machine's")
    port: int = setting(8501, "port to listen on; 0 for any free one", at_least=0, at_most=65_535)
    titles: str | None = setting(
        None, "for the page: CSV whose first line names the columns, `id` and `title` among them"
    )
    max_batch_size: int = setting(64, "rows that are computed in one call of the model", at_least=1)
    batch_timeout_ms: float = setting(
        0.0, "how long a batch that is not full waits for more rows; 0: it takes what is there", at_least=0
    )
    max_queue: int = setting(4096, "rows that may wait; what comes on top is answered with 503", at_least=1)
    max_rows: int = setting(1024, "histories in one request", at_least=1)
    max_history: int = setting(1000, "items in one history", at_least=1)
    max_body_bytes: int = setting(4 << 20, "size of one request's body", at_least=1)
    timeout: float = setting(30.0, "seconds that one request may take", above=0)
    poll_seconds: float = setting(2.0, "seconds between two looks for a new version", above=0)
    shutdown_seconds: float = setting(
        30.0, "seconds that requests in flight are given when the server stops", at_least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name or set(self.name) & set("/:?#%{}"):
            raise UserError(f"`name` must be text without any of / : ? # % {{ }}. Received: name={self.name!r}")
