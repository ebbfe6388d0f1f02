"""Layers, losses, layouts, sampling and optimizers. Importing them makes products of float32 matrices exact."""

from bert4rec_tf.foundation.devices import set_exact_products

set_exact_products(True)  # TensorFlow's default on a GPU is TensorFloat-32
