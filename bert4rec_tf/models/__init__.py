"""MODELS: name -> class."""

from bert4rec_tf.models.bert4rec import BERT4Rec
from bert4rec_tf.models.pop import Pop
from bert4rec_tf.models.recommender import Recommender

MODELS: dict[str, type[Recommender]] = {"bert4rec": BERT4Rec, "pop": Pop}
