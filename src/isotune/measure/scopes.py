"""Which parameters a noise measurement is about."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Scope = Callable[[str, Tensor], bool]  # (name, parameter) -> whether it belongs


def hidden_matrices(model: nn.Module) -> set[str]:
    """The names of all matrices but embeddings and the output head.

    Rows of rare tokens, in the embedding and in the head, have second moments near zero and blow preconditioned sums
    up. A head is recognised by its size: a matrix with as many rows as an embedding.
    """
    embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    num_rows = {embedding.shape[0] for embedding in embeddings}
    ids = {id(embedding) for embedding in embeddings}
    return {
        name
        for name, p in model.named_parameters()
        if p.requires_grad and p.ndim >= 2 and id(p) not in ids and p.shape[0] not in num_rows
    }
