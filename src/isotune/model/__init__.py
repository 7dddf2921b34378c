"""Windows of tokens -> loss: the decoder, and its exchange with Hugging Face's Llama format."""

from isotune.model.huggingface import export_llama, from_state, import_llama, llama_state_dict
from isotune.model.transformer import Transformer

__all__ = ["Transformer", "export_llama", "from_state", "import_llama", "llama_state_dict"]
