"""The folder of a run of the local engine."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from dagc.errors import InvalidInput
from dagc.files import write_atomically
from dagc.folder import Folder, read_metrics, summary
from dagc.training.config import Config
from dagc.training.federation import Federation

__all__ = ["RunFolder"]

MODEL = "model.safetensors"


class RunFolder(Folder):
    """Everything of one run on disk, with the model, and the sizes and first parameters of all clients."""

    def __init__(self, path: str | Path, federation: Federation) -> None:
        super().__init__(path, federation)
        self.federation = federation
        self._written: set[str] = set()  # the settings in config.toml

    def finish(self) -> None:
        """Write the model, then the result."""
        model = {name: value.contiguous().clone() for name, value in self.federation.model.state_dict().items()}
        with self.writing(), write_atomically(self.path / MODEL) as file:
            try:
                save_file(model, file.name)
            except SafetensorError as error:
                raise OSError(str(error)) from error
        self.conclude({**summary(read_metrics(self.path)), "config": self.federation.config.key(), "model": MODEL})

    def _key(self) -> str:
        """Of the settings in the file only, so that new settings and defaults of later versions change nothing."""
        return self.federation.config.key(self._written)

    def _claim(self, settings: dict[str, Any] | None) -> None:
        """Refuse a folder that holds another run; write the settings and the clients to a new one."""
        config = self.federation.config
        if settings is None:
            settings = {name: value for name, value in config.as_dict().items() if value is not None}
            self.describe(settings, self._clients())
        else:
            self._recognise()
        self._written = set(settings)
        held = Config(**settings)
        if held.key() != config.key():
            ours, theirs = config.as_dict(), held.as_dict()
            other = [
                f"{name} is {theirs[name]!r} there, {ours[name]!r} here" for name in ours if ours[name] != theirs[name]
            ]
            raise InvalidInput(f"{self.path} holds another run ({'; '.join(other)}): choose another --output")

    def _recognise(self) -> None:
        """Refuse the folder of a run that was given another model or other data."""
        try:
            known = json.loads((self.path / "clients.json").read_bytes()).get("given")
        except (OSError, ValueError, AttributeError, RecursionError):
            return  # a report will say what is wrong with it
        if known != self.federation.custom.fingerprint:
            raise InvalidInput(
                f"{self.path} holds a run that was given another model or other data: pass the same ones, with the "
                "same initial weights, or choose another folder"
            )

    def _clients(self) -> dict[str, Any]:
        federation = self.federation
        return {
            "data": federation.data.name,
            "classes": list(federation.data.label_names),
            "notes": list(federation.notes),
            "metric": federation.goal.metric,
            "given": federation.custom.fingerprint,
            "parameters": federation.size,
            "sizes": federation.partition.sizes.tolist(),
            "names": list(federation.names),
            "first_parameters": federation.first_orders(),
        }
