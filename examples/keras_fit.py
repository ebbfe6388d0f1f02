"""Trains BERT4Rec with Keras' `fit` on a table of actions, keeps it in a file, and recommends by the table's own ids.

    python examples/keras_fit.py examples/actions.csv

Prints the histories, a line for each epoch, and five recommendations to the first user. It writes shop.keras.
"""

import sys

import keras
import pandas as pd

import bert4rec_tf as b4r

frame = pd.read_csv(sys.argv[1])  # one row for each action: a user, an item, a time
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 50

# From the table to histories. Validation asks for the last items, so the model must not train on them.
sequences = b4r.datasets.read(frame)
training = b4r.datasets.without_last(sequences)
print(sequences)

model = b4r.BERT4Rec(
    sequences.num_items,
    max_length=20,
    hidden_dim=32,
    num_heads=2,
    initial_vectors="cooccurrence",
    initial_layers="identity",
)
model.adapt(training)  # keeps the ids of the items; the file has them too
model.initialise(training)  # items that users have together begin with similar vectors
model.compile(keras.optimizers.Adam(1e-3), metrics=[b4r.metrics.NDCG(10), b4r.metrics.HitRate(10)])
model.fit(
    b4r.datasets.training_batches(
        model,
        training,
        batch_size=32,
        masking=b4r.datasets.MaskingSettings(prefix_copies=1),  # each item is a target, after the items before it
    ),
    validation_data=b4r.datasets.next_item_batches(sequences),
    callbacks=[keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True)],
    epochs=epochs,
    verbose=2,
)
model.save("shop.keras")

# In another process, `import bert4rec_tf` must come before this.
model = keras.saving.load_model("shop.keras")
history = sequences.vocabulary.decode(sequences[0])
print(f"After {', '.join(history)}:")
print(model.recommend(history, k=5).to_string(index=False))
