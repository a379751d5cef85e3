from collections.abc import Iterator
from typing import Literal, final

__version__: str

class Error(Exception):
    """What went wrong, as a sentence."""

@final
class Model:
    """A loaded model. Several threads may use one; its answers take turns."""

    @property
    def name(self) -> str:
        """What it was called when it was loaded."""

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 512,
        seed: int = 0,
        temperature: float = 0.0,
        raw: bool = False,
    ) -> Pieces:
        """Begin to answer a prompt; the defaults are those of `shoal run`.

        The same seed and prompt give the same answer on every machine. With `raw` the prompt is continued as it stands,
        instead of being put into the model's chat template.
        """

@final
class Pieces(Iterator[str]):
    """The text of an answer, piece by piece, while it is computed by another thread.

    It ends early when it is closed, dropped, or left by an exception such as KeyboardInterrupt. One that is neither read
    nor closed keeps its turn, and other answers of the model wait.
    """

    def __iter__(self) -> Pieces: ...
    def __next__(self) -> str: ...
    def __enter__(self) -> Pieces: ...
    def __exit__(self, *exception: object) -> None: ...
    def close(self) -> None:
        """End the answer; further pieces do not come."""

    @property
    def finish(self) -> Literal["stop", "length", "cancelled"] | None:
        """Why the answer ended: the model, `max_tokens` or the context, or `close`; None until then."""

def load(model: str = "minnow", *, threads: int = 0) -> Model:
    """Load a .gguf file by its path, a model by its name in `shoal model list`, or "minnow", which is inside the package.

    `threads` compute, 0 for as many as there are physical cores.
    """
