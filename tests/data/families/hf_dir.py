"""Writes the transformers side of a fixture as a model directory, the input of `shoal convert`."""
def write(folder, family, model, vocab):
    raise NotImplementedError
