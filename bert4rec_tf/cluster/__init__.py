"""The same work on a cluster. Only `spark` knows an engine; its tasks run what is in `tasks`."""

from bert4rec_tf.foundation.startup import import_tensorflow

import_tensorflow()  # every process of a cluster starts here, and would print TensorFlow's messages
