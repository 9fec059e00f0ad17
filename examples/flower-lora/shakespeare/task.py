"""The model with its adapters, and the text: every node has the lines of one role, the largest first."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

TEXT = "**/tinyshakespeare_by_role*.json"
"""What is looked for in the folder DAGC_DATA if the configuration names no text."""
LETTERS = 128
HELD_OUT = 0.1
"""The part of every role's lines that nobody trains on: their end."""
Config = Mapping[str, Any]


def build(config: Config) -> PeftModel:
    """The model with adapters, the same on the server and on all nodes; everything but the adapters is frozen."""
    torch.manual_seed(int(config["seed"]))
    if config["model"]:
        base = AutoModelForCausalLM.from_pretrained(config["model"], dtype=torch.bfloat16)
    else:
        base = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=LETTERS,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=config["context"],
                initializer_range=0.2,  # as large as trained weights, so that adapters have something to work with
            )
        )
    targets = str(config["lora-targets"]).split(",")
    adapters = LoraConfig(r=int(config["lora-rank"]), lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
    return get_peft_model(base, adapters)


def adapters_of(model: PeftModel) -> ArrayRecord:
    """What nodes and server exchange. Adapters are float32, whatever the model is."""
    return ArrayRecord({name: value.float() for name, value in get_peft_model_state_dict(model).items()})


def set_adapters(model: PeftModel, arrays: ArrayRecord) -> None:
    """Give a model its adapters."""
    set_peft_model_state_dict(model, arrays.to_torch_state_dict())


def roles(config: Config, count: int) -> list[Tensor]:
    """The tokens of the roles with the longest texts."""
    folder = Path(os.environ.get("DAGC_DATA", "."))
    path = Path(config["text"]) if config["text"] else next(iter(sorted(folder.glob(TEXT))), None)
    if path is None or not path.is_file():
        raise SystemExit(
            f"there is no text {path or TEXT} in {folder}: give one with --run-config 'text=\"FILE.json\"'"
        )
    texts = ["\n".join(lines) for lines in json.loads(path.read_text(encoding="utf-8")).values()]
    texts = sorted(texts, key=len, reverse=True)[:count]
    if config["model"]:
        tokenizer = AutoTokenizer.from_pretrained(config["model"])
        return [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]
    return [torch.tensor(list(text.encode("ascii", "replace"))) for text in texts]


def load_train(config: Config, partition: int) -> Tensor:
    """A node's tokens."""
    own = roles(config, partition + 1)[partition]
    return own[: int(len(own) * (1 - HELD_OUT))]


def load_test(config: Config, partitions: int) -> list[Tensor]:
    """The tokens that each node has held out."""
    return [own[int(len(own) * (1 - HELD_OUT)) :] for own in roles(config, partitions)]


def windows(tokens: Tensor, size: int, context: int, seed: int) -> Tensor:
    """Pieces of a text, drawn from a seed."""
    starts = torch.randint(len(tokens) - context, (size, 1), generator=torch.Generator().manual_seed(seed))
    return tokens[starts + torch.arange(context)]


def train(model: PeftModel, tokens: Tensor, config: Config, seed: int) -> float:
    """Some steps of AdamW on the adapters; returns the mean loss."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=float(config["learning-rate"]))
    model.train()
    total, steps = 0.0, int(config["local-steps"])
    for step in range(steps):
        batch = windows(tokens, int(config["batch-size"]), int(config["context"]), 1000 * seed + step)
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / steps


@torch.no_grad()
def test(model: PeftModel, texts: list[Tensor], config: Config) -> float:
    """The mean loss on what was held out, the same weight for every role."""
    model.eval()
    batches = [windows(tokens, 32, int(config["context"]), seed) for seed, tokens in enumerate(texts)]
    return sum(float(model(input_ids=batch, labels=batch).loss) for batch in batches) / len(batches)
