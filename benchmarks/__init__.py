"""Benchmarks of the hot paths, compared with the authors' formulation and with the machine's limits."""

from bert4rec_tf.foundation.startup import import_tensorflow

import_tensorflow()
