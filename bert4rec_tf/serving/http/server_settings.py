"""Settings of the HTTP server."""

import dataclasses
from dataclasses import dataclass

from bert4rec_tf.config.setting_fields import Settings, setting
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.trust import TRUST


@dataclass(frozen=True)
class ServerSettings(Settings):
    """The settings of `bert4rec serve`. Every field is a flag of the same name."""

    model: str = dataclasses.field(
        metadata={"help": "folder of a SavedModel, a work directory that has one, or numbered folders of versions"}
    )
    trust_model: bool = setting(False, TRUST)
    name: str = setting("bert4rec", "name of the model in the URLs")
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all addresses of this machine")
    allowed_hosts: str = setting(
        "",
        "names that the server is reached by, separated by commas, as behind a proxy (default: any name if other "
        "machines reach it, else localhost)",
    )
    port: int = setting(8501, "port to listen on; 0 for any free one", at_least=0, at_most=65_535)
    titles: str | None = setting(
        None,
        "for the page: a CSV with a header, or MovieLens' movies.dat (default: titles in the model)",
    )
    attributes: str | None = setting(
        None, "for `where`: CSV or Parquet with the items' ids and attributes; read again when it changes"
    )
    blocked: str | None = setting(
        None, "file with the ids of items that are never recommended, one on each line; read again when it changes"
    )
    access_log: str | None = setting(None, "file to which a line of JSON is added for each request; - for the output")
    max_batch_size: int = setting(64, "rows per call of the model", at_least=1)
    max_queue: int = setting(4096, "rows that may wait; further requests get 503", at_least=1)
    max_rows: int = setting(1024, "maximum number of histories in one request", at_least=1)
    max_history: int = setting(1000, "maximum number of items in one history", at_least=1)
    max_answer: int = setting(
        1 << 18, "maximum number of values in an answer: rows times k, or times the candidates to score", at_least=1
    )
    max_body_bytes: int = setting(4 << 20, "maximum size of a request's body", at_least=1)
    timeout: float = setting(30.0, "maximum seconds per request", above=0)
    poll_seconds: float = setting(2.0, "seconds between checks for a new version, --attributes and --blocked", above=0)
    shutdown_seconds: float = setting(30.0, "seconds to finish open requests when the server stops", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name or set(self.name) & set("/:?#%{}"):
            raise UserError(f"`name` must be text without any of / : ? # % {{ }}. Received: name={self.name!r}")
