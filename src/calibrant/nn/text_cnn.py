"""An eight-layer 1-D CNN for token sequences (RC §3.1, 20 Newsgroups; the appendix with its details is missing).

The layers: embedding, three pairs of width-5 convolutions with BatchNorm, max-pools between the pairs, global maximum,
a dense layer and the classifier. Word vectors start small (σ = 0.05), so that a few hundred steps can change them; with
torch's σ = 1 the network learns nothing for epochs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calibrant.nn.blocks import Classifier, Layers, he

PAD = 0


class TextCNN(Classifier):
    """A CNN that takes tokens, long [N, L]. Token 0 is padding."""

    def __init__(
        self,
        classes: int,
        in_channels: int,
        size: tuple[int, int],
        layers: Layers,
        *,
        vocabulary: int = 30_000,
        embedding: int = 128,
        channels: int = 128,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=0.05)
        with torch.no_grad():
            self.embedding.weight[PAD] = 0
        self.body = nn.Sequential()
        inputs = embedding
        for pair in range(3):
            for _ in range(2):
                convolution = nn.Conv1d(inputs, channels, 5, padding=2, bias=False)
                self.body.append(nn.Sequential(convolution, nn.BatchNorm1d(channels), layers.act(), layers.drop()))
                inputs = channels
            if pair < 2:
                self.body.append(nn.MaxPool1d(4))
        self.dense = nn.Sequential(nn.Linear(channels, channels), layers.act(), layers.drop())
        self.fc = nn.Linear(channels, classes)
        he(self)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(self.body(self.embedding(x).transpose(1, 2)).amax(2))
        return out
