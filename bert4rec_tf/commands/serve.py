"""Serves an exported model over HTTP, with a page to try it."""

from bert4rec_tf.commands.flags import list_fields, parse_command
from bert4rec_tf.export.layout import find_model_folder
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.startup import import_tensorflow
from bert4rec_tf.foundation.stores import expand_path
from bert4rec_tf.serving.http.server_settings import ServerSettings


def main(arguments: list[str]) -> None:
    settings = ServerSettings(**parse_command(__doc__ or "", arguments, list_fields(ServerSettings)))
    folder = find_model_folder(expand_path(settings.model))
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    print(f"loading {settings.model}", flush=True)  # before TensorFlow, whose import takes seconds
    import_tensorflow()
    try:
        from bert4rec_tf.serving.http import server
    except ModuleNotFoundError as error:
        if error.name not in ("aiohttp", "orjson", "prometheus_client"):
            raise
        raise UserError(f"The server needs {error.name}: pip install 'bert4rec-tf[serve]'") from error
    server.serve(settings)
