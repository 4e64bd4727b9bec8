"""A context window that counts with a model's own tokenizer: Hugging Face's `tokenizers`, without any network.

    pip install tokenizers
    python examples/own_tokenizer.py [tokenizer.json]

Open models come with a file `tokenizer.json`; give yours. Without one a small tokenizer is trained here, so that there
is something to count with. Its model plays a script: put a provider of a real model there, and nothing else changes.
"""

import sys
from functools import lru_cache
from pathlib import Path

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from refold import AgentConfig, AgentRuntime, Message, ScriptedProvider, TextBlock, TokenWindow, ToolResultBlock, say

PER_MESSAGE = 4
"""Tokens by which chat templates mark who says a message, about."""

OTHER_TOKENS = 1_600
"""An image or a document counts as so many."""


def tokenizer_of(file: str | None) -> Tokenizer:
    """Return the tokenizer in a file, or a small one of bytes and frequent words."""
    if file is not None:
        return Tokenizer.from_file(file)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1_000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(Path(__file__).read_text(encoding="utf-8").splitlines(), trainer)
    return tokenizer


class Counting:
    """Counts the tokens of messages; each text once, since a window counts the whole history before each call."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._of_text = lru_cache(maxsize=10_000)(lambda text: len(tokenizer.encode(text).ids))

    def __call__(self, message: Message) -> int:
        return PER_MESSAGE + sum(map(self._of_block, message.content))

    def _of_block(self, block: object) -> int:
        if isinstance(block, TextBlock):
            return self._of_text(block.text)
        if isinstance(block, ToolResultBlock):
            return sum(map(self._of_block, block.content))
        if hasattr(block, "input"):
            return self._of_text(msgspec.json.encode(block.input).decode())
        return OTHER_TOKENS


count = Counting(tokenizer_of(sys.argv[1] if len(sys.argv) > 1 else None))
story = "Once upon a time there was a log that nothing was ever lost from. 从前有一本日志。 " * 6
provider = ScriptedProvider([say(story), say("Yes.")])
window = TokenWindow(100, count=count)

with AgentRuntime(AgentConfig(model="scripted", system_prompt=""), provider=provider, context=window) as runtime:
    session = runtime.session("alice")
    session.send("Tell me a story.")
    session.send("Is it true?")
    tokens = [count(message) for message in session.history()]
    print("the story is longer than the window:", tokens[1] > window.max_tokens)
    print(f"of {len(tokens) - 1} messages the model was shown {len(provider.requests[-1].messages)}")
