"""Language models in this process.

    import shoal

    model = shoal.load("minnow")
    for piece in model.generate("Tell me a story"):
        print(piece, end="", flush=True)
"""

from ._shoal import Error, Model, Pieces, __version__, load

__all__ = ["Error", "Model", "Pieces", "__version__", "load"]
