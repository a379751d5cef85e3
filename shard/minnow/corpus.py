"""Seeded generator of chat conversations, and the text form they are trained in.

A conversation is a list of (role, text). About half of the replies are stories, the rest are short answers; some
conversations go on for several turns and ask about what was said before. A share of the (character, object) pairs is
held out: `conversation(rng, held_out=False)` never tells a story with such a pair, so that validation measures new combinations.

    python corpus.py --seed 1 --count 5      prints five conversations
"""

import argparse
import random
import zlib

from answers import answer
from stories import EXTRA_CHARACTERS, EXTRA_OBJECTS, Tale, follow_up, invented, prompt, tell
from words import CHARACTERS, HE, OBJECTS, SHE

SYSTEMS = ["You are Minnow, a small and friendly model.", "You are a helpful assistant.", "You are a friendly storyteller.", "Answer briefly.", "You are a helpful, honest and kind assistant.", "You tell stories for children.", "You are an AI assistant.", "Be polite and short."]
HELD_OUT_PERCENT = 4
# Longest conversation, in words; with the vocabulary of 2048 it stays below 1024 tokens.
MAX_WORDS = 620
SLOT_WORDS = {word.lower() for word in SHE + HE + list(CHARACTERS) + list(OBJECTS) + EXTRA_CHARACTERS + EXTRA_OBJECTS}

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def is_held_out(tale):
    return zlib.crc32(f"{tale.who}/{tale.thing}".encode()) % 100 < HELD_OUT_PERCENT


def draw_tale(rng, held_out, easy=False):
    """A tale and the wish for it; its pair is held out or not, as asked; an easy one is short three times out of four."""
    while True:
        tale = Tale.draw(rng)
        ask = prompt(tale, rng, 0.75 if easy else 0.09)
        tale.settle(rng)
        if is_held_out(tale) == held_out:
            return tale, ask


def acquaintance(rng):
    """The user gives a name and asks for it later."""
    name = rng.choice(SHE + HE) if rng.random() < 0.6 else invented(rng).capitalize()
    first = rng.choice([f"My name is {name}.", f"I am {name}.", f"Hello, I am {name}.", f"Hi, my name is {name}", f"my name is {name}", f"I'm {name}."])
    hello = rng.choice([f"Hello {name}! What would you like to hear?", f"Nice to meet you, {name}. I am Minnow."])
    ask = rng.choice(["What is my name?", "what's my name?", "Do you know my name?", "Do you remember my name?", "Who am I?", "What am I called?"])
    return (first, hello), (ask, f"Your name is {name}.")


def conversation(rng, held_out=False, easy=False):
    """A list of (role, text), perhaps opened by a system message.

    An easy one has one or two turns, and its stories are mostly short: more of its words repeat the prompt's."""
    messages = [("system", rng.choice(SYSTEMS))] if rng.random() < 0.18 else []
    r = rng.random()
    turns = 1 if r < 0.62 else 2 if r < 0.82 else 2 if easy else rng.randint(3, 9)
    tale = story = reminder = None
    words = 0
    for turn in range(turns):
        if words > MAX_WORDS - 160:
            break
        if reminder and rng.random() < 0.5:
            ask, reply = reminder
            reminder = None
        elif tale and rng.random() < 0.55:
            ask, reply = follow_up(tale, rng, story)
        elif rng.random() < (0.5 if turn == 0 else 0.35):
            tale, ask = draw_tale(rng, held_out, easy)
            reply = story = tell(tale, rng)
        elif turns > 1 and rng.random() < 0.2:
            (ask, reply), reminder = acquaintance(rng)
        elif turns == 1 and rng.random() < 0.02:
            (ask, reply), _ = acquaintance(rng)
        else:
            ask, reply = answer(rng)
        words += len(ask.split()) + len(reply.split())
        messages += [("user", ask), ("assistant", reply)]
    return messages


def is_slot(word, ask):
    """Is this word of a reply likely to fill a slot: a name, an actor, a thing, or a word of the question?"""
    return word in SLOT_WORDS or word in ask


def render(messages):
    """What the chat template makes of the messages: pairs of (text, is this to be learned)."""
    parts = []
    for role, text in messages:
        mine = role == "assistant"
        parts.append((f"<|im_start|>{role}\n", False))
        parts.append((text + "<|im_end|>", mine))
        parts.append(("\n", False))
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=5)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for _ in range(args.count):
        print("".join(text for text, _ in render(conversation(rng))))


if __name__ == "__main__":
    main()
