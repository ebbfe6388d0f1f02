"""Serves an exported model over HTTP, with a page to try it."""

from dataclasses import MISSING, fields

from bert4rec_tf.config.setting_fields import add_flag
from bert4rec_tf.export.layout import find_model_folder
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import expand_path
from bert4rec_tf.foundation.startup import Parser, import_tensorflow
from bert4rec_tf.serving.http.server_settings import ServerSettings


def main(arguments: list[str]) -> None:
    parser = Parser(prog="bert4rec serve", description=__doc__, allow_abbrev=False)
    for field in fields(ServerSettings):
        options = {"required": True} if field.default is MISSING else {"default": field.default}
        default_text = "" if options.get("default") in (None, "") else " (default: %(default)s)"
        add_flag(parser, field, default_text, **options)
    settings = ServerSettings(**vars(parser.parse_args(arguments)))
    folder = find_model_folder(expand_path(settings.model))
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    print(f"loading {settings.model}", flush=True)  # before TensorFlow, whose import takes seconds
    import_tensorflow()
    try:
        from bert4rec_tf.serving.http import server
    except ModuleNotFoundError as error:
        if error.name not in ("aiohttp", "orjson"):
            raise
        raise UserError(f"The server needs {error.name}: pip install 'bert4rec-tf[serve]'") from error
    server.serve(settings)
