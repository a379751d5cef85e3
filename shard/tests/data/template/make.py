"""Writes what transformers renders for every template and conversation.

    python make.py [PUBLISHED]      # needs transformers and jinja2

`expected.json` holds the texts for the templates in this folder, which are our own. `published.json` holds only length
and FNV-1a hash of the texts for the templates in the folder PUBLISHED, which are not ours to copy. A rendering that
fails is `null`.
"""

import datetime
import glob
import json
import os
import sys

from transformers.utils import chat_template_utils

HERE = os.path.dirname(os.path.abspath(__file__))


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 5, 14, 7, 9)


chat_template_utils.datetime = Clock


def render(template, case):
    extra = dict(case.get("extra", {}))
    for name in ("bos_token", "eos_token"):
        if case.get(name) is not None:
            extra[name] = case[name]
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [case["messages"]],
            tools=case.get("tools"),
            chat_template=template,
            add_generation_prompt=case.get("add_generation_prompt", False),
            **extra,
        )
        return texts[0]
    except Exception as error:  # the template refuses the conversation
        print("   ", case["name"], type(error).__name__, str(error)[:100])
        return None


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{len(text.encode())}:{value:016x}"


def main():
    with open(os.path.join(HERE, "conversations.json")) as file:
        cases = json.load(file)

    def all_of(folder, keep):
        result = {}
        for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
            print(os.path.basename(path))
            with open(path, newline="") as file:
                template = file.read()
            texts = {case["name"]: render(template, case) for case in cases}
            result[os.path.basename(path)] = {k: None if t is None else keep(t) for k, t in texts.items()}
        return result

    def write(name, data):
        with open(os.path.join(HERE, name), "w") as file:
            json.dump(data, file, ensure_ascii=False, indent=1)
            file.write("\n")

    write("expected.json", all_of(HERE, lambda text: text))
    if len(sys.argv) > 1:
        write("published.json", all_of(sys.argv[1], fnv))


if __name__ == "__main__":
    main()
