"""Data sets by name, the user's own files, frames and arrays, and how samples are split over clients."""

from dagc.data.batches import Batches
from dagc.data.dataset import Dataset, Fields, Objective
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
