"""Builds a model of your own from this package's layers, loss and metric, and trains it with Keras alone.

    python examples/keras_layers.py examples/actions.csv

Each item of a history is to be found by the items before it. Padding needs no care: the embedding masks it, layers pass
the mask on, and targets of 0 count neither in the loss nor in the metric.
"""

import sys

import keras
import numpy as np

import bert4rec_tf as b4r

sequences = b4r.datasets.read(sys.argv[1])
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 15
max_length, width, num_rows = 20, 32, sequences.num_items + 1  # row 0 is padding

# Histories as rows of item numbers, oldest first, with zeros after the last item. A target is the item that comes next.
users = np.arange(sequences.num_users)
rows, lengths = sequences.take_last(users, max_length + 1)
inputs, targets = rows[:, :-1], rows[:, 1:]
is_last = np.arange(max_length) == lengths[:, None] - 2
training, validation = np.where(is_last, 0, targets), np.where(is_last, targets, 0)

items = keras.Input((max_length,), dtype="int32")
embedding = keras.layers.Embedding(num_rows, width, mask_zero=True)
hidden = b4r.layers.PositionEmbedding(max_length)(embedding(items))
for _ in range(2):
    hidden = b4r.layers.CausalBlock(num_heads=2, dropout=0.2)(hidden)  # sees only the items before
scores = b4r.layers.MaskedItemHead(num_rows, embedding=embedding)(hidden)
model = keras.Model(items, scores)
model.summary()

model.compile(keras.optimizers.Adam(1e-2), loss=b4r.losses.SoftmaxCrossEntropy(), metrics=[b4r.metrics.NDCG(10)])
model.fit(inputs, training, validation_data=(inputs, validation), batch_size=64, epochs=epochs, verbose=2)
model.save("own.keras")

# The scores after a user's whole history are those at its last item. Column i is item i, and column 0 is padding.
model = keras.saving.load_model("own.keras")
rows, lengths = sequences.take_last(users[:1], max_length)
best = 1 + np.argsort(-model.predict(rows, verbose=0)[0, lengths[0] - 1, 1:])[:5]
print(f"User {sequences.users[0]} may like {', '.join(sequences.vocabulary.decode(best))}")
