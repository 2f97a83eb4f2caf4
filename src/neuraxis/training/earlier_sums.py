"""Where ranks' gradients are summed: what a rank has of the last exchange is the sum already, and counts once."""

from __future__ import annotations

from torch import Tensor

from neuraxis.training.buckets import Bucket, BucketPlan

__all__ = ["EarlierSums"]


class EarlierSums(dict[int, Tensor]):
    """Gradients that were sums before a backward pass added to them, by the place of their parameter."""

    def note(self, plan: BucketPlan) -> None:
        """Before a backward pass; what was noted before an earlier one stays, for it has not been sent yet."""
        if self:
            return
        for bucket in plan.buckets:
            for place, parameter, view in zip(bucket.places, bucket.parameters, bucket.views, strict=True):
                if parameter.grad is view:
                    self[place] = view.clone()

    def take_off(self, bucket: Bucket) -> None:
        """Leave in the gradients of a bucket what was added since."""
        for place, parameter, view in zip(bucket.places, bucket.parameters, bucket.views, strict=True):
            if place in self and parameter.grad is view:  # else it was set to None since
                view.sub_(self[place])
