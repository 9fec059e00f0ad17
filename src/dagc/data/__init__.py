"""Data sets in their official formats, the user's own data, and how they are split over clients."""

from dagc.data.batches import Batches
from dagc.data.dataset import Dataset, Objective
from dagc.data.fields import Fields
from dagc.data.loading import CATALOGUE, data_folder, load
from dagc.data.partition import PARTITIONS, Partition, by_client, from_sizes, iid, make_partition, skewed

__all__ = [
    "CATALOGUE",
    "PARTITIONS",
    "Batches",
    "Dataset",
    "Fields",
    "Objective",
    "Partition",
    "by_client",
    "data_folder",
    "from_sizes",
    "iid",
    "load",
    "make_partition",
    "skewed",
]
