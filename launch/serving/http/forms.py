"""Bodies with files, multipart/form-data, read as if they were JSON objects."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.errors import UNSUPPORTED_KIND, HTTPError

KIND = "multipart/form-data"
FLAGS: Mapping[str, bool] = {"true": True, "false": False}


class Form(Body):
    """The fields of a form: numbers and flags are written as texts there."""

    def integer(self, name: str, default: Any = None) -> Any:
        value = self._get(name, default)
        if value is default:
            return default
        try:
            return int(value)
        except (TypeError, ValueError) as error:
            raise self.fail(name, "an integer") from error

    def number(self, name: str, default: float) -> float:
        value = self._get(name, default)
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise self.fail(name, "a number") from error
        return Body({name: number}).number(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._get(name, default)
        if value is default:
            return default
        flag = FLAGS.get(str(value).lower())
        if flag is None:
            raise self.fail(name, "true or false")
        return flag


class File:
    """A file of a form."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data = name, data

    def __str__(self) -> str:
        return "a file"


async def parse_form(headers: Headers, data: bytes) -> Body:
    """The fields by name, files as `File`, and a list of all that have a name such as `include[]`.
    Raises RequestError for what is no form, HTTPError for what is not sent as one."""
    kind = headers.get("content-type", "")
    if not kind.startswith(KIND):
        raise HTTPError(UNSUPPORTED_KIND, f"the body is {kind or 'of no type'}; {KIND} is needed")

    async def stream() -> AsyncGenerator[bytes, None]:
        yield data

    try:
        form = await MultiPartParser(headers, stream()).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise RequestError(f"the body is not a form: {error}") from error
    values: dict[str, Any] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            values[name] = File(value.filename or name, await value.read())
        elif name.endswith("[]"):
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    await form.close()
    return Form(values)
