"""The base of everything that clients get back as JSON."""

from pydantic import BaseModel, ConfigDict

__all__ = ["Reply"]


class Reply(BaseModel):
    """A field that was not set is not sent; one set to None is sent as null."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> str:
        return self.model_dump_json(exclude_unset=True)
