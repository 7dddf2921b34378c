"""Windows of tokens -> loss: the decoder, and its exchange with Hugging Face's Llama format."""

from isotune.model.transformer import Transformer

__all__ = ["Transformer"]
