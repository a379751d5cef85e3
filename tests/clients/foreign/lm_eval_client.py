"""lm-eval: log-likelihoods of a task of four documents, over local-completions."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import FOLDER, MODEL, PATIENCE, TOKEN, URL, check, main
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

DOCUMENTS = [
    {"text": "The capital of France is", "choices": ["Paris", "banana"], "label": 0},
    {"text": "The fox ran into the", "choices": ["seventeen", "forest"], "label": 1},
    {"text": "Once upon a", "choices": ["time", "of"], "label": 0},
    {"text": "At night the owl", "choices": ["the the the", "flew"], "label": 1},
]
TASK = {
    "task": "four", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "text",
    "doc_to_choice": "choices", "doc_to_target": "label", "metric_list": [{"metric": "acc"}],
}


def tokenizer(file, folder):
    """The tokenizer of a GGUF as the files that lm-eval reads: the words and merges are the model's, which is what counts here."""
    fields = GGUFReader(file).fields
    words, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    made = Tokenizer(models.BPE({word: id for id, word in enumerate(words)}, [tuple(merge.split(" ", 1)) for merge in merges]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    end = words[fields["tokenizer.ggml.eos_token_id"].contents()]
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end, pad_token=end).save_pretrained(folder)


def evaluated(folder, model):
    folder = Path(folder)
    data = folder / "four.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    (folder / "four.yaml").write_text(json.dumps({**TASK, "dataset_kwargs": {"data_files": {"test": str(data)}}}))
    tokenizer(FOLDER / "model.gguf", folder / "tokenizer")
    made = f"model={model},base_url={URL}/v1/completions,tokenizer_backend=huggingface,tokenizer={folder}/tokenizer,max_length=512,max_retries=1"
    command = [Path(sys.executable).with_name("lm_eval"), "--model", "local-completions", "--model_args", made, "--tasks", "four",
               "--include_path", folder, "--batch_size", "4", "--output_path", folder / "results", "--log_samples"]
    variables = {**os.environ, "OPENAI_API_KEY": TOKEN, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE)


@check
def loglikelihoods():
    with tempfile.TemporaryDirectory() as folder:
        said = evaluated(folder, MODEL)
        found = list(Path(folder, "results").rglob("samples_*.jsonl"))
        assert said.returncode == 0 and found, (said.stdout + said.stderr)[-600:]
        samples = [json.loads(line) for line in found[0].read_text().splitlines()]
        likely = [float(answer[0][0]) for sample in samples for answer in sample["resps"]]
        assert len(samples) == len(DOCUMENTS) and len(likely) == 8 and all(value < 0 for value in likely), samples
        # Both a small model and a very small one know these.
        assert sum(sample["acc"] for sample in samples) >= 3, samples


@check
def errors():
    with tempfile.TemporaryDirectory() as folder:
        said = evaluated(folder, "no-such-model")
        assert said.returncode != 0 and "no-such-model" in said.stdout + said.stderr, said


main("lm-eval")
