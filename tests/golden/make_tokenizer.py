#!/usr/bin/env python3
"""Gives the fixture qwen3_yarn a tokenizer, and says what transformers makes of texts with it.

    python tests/golden/make_tokenizer.py    # after make_fixtures.py, which empties the folder

Needs requirements.txt without torch and peft. Downloads nothing; same versions, same bytes.
tokenizer.json: a BPE of as many tokens as the model has, learnt from the text below, with <s>
before every text. expected_text.json: texts, their ids, and what the ids give back, by transformers.
"""

import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FIXTURE = Path(__file__).resolve().parent / "fixtures" / "qwen3_yarn"
LEARNT_FROM = [
    "the scheduler decides, the executor does, and the loop stands between them",
    "one base model serves many adapters, each of them in a slot of its own",
    "a request waits until its adapter is there, then its tokens are computed step by step",
    "what is on the disk is loaded, what is loaded is copied, what is copied is used",
]
TEXTS = [
    "the adapter waits",
    "The Scheduler decides, step by step.",
    " two  blanks and\na line",
    "Zürich 42: ÷ 漢字 🙂",
    "<s>the loop</s>",
    "x",
]


def make_tokenizer(vocab_size):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(LEARNT_FROM, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    # Engines pad and cut by themselves; who reads the file must not do as it says.
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=20, pad_id=2, pad_token="</s>")
    return tokenizer


def main():
    vocab_size = json.loads((FIXTURE / "config.json").read_text())["vocab_size"]
    path = FIXTURE / "tokenizer.json"
    tokenizer = make_tokenizer(vocab_size)
    tokenizer.save(str(path))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    expected = []
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        expected.append({"text": text, "ids": ids,
                         "decoded": theirs.decode(ids, skip_special_tokens=True,
                                                  clean_up_tokenization_spaces=False)})
    assert tokenizer.get_vocab_size() <= vocab_size
    (FIXTURE / "expected_text.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
