"""Tests. Every process that runs them knows ACCORDION, as a plugin that has options and asks for norms."""

from dagc.policies import METHODS
from research.accordion import METHOD

METHODS.setdefault("accordion", METHOD)
