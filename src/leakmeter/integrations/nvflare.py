"""Records what an NVIDIA FLARE client sends back, as a filter in both of the client's chains.

Filters run in order: result filters before this one have already changed what it sees; those after
it have not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from leakmeter.errors import LeakmeterError
from leakmeter.recording import Recorder, same_precision, told
from leakmeter.state import State
from leakmeter.update import Update

try:
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.filter import Filter
    from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.app_constant import AppConstants
except ImportError as error:
    raise LeakmeterError(
        f"leakmeter.integrations.nvflare needs NVIDIA FLARE ({error}): pip install 'nvflare>=2.9'"
    ) from None

RECEIVED = "leakmeter.received"
"""Key in the task's context that keeps its round and weights until its result arrives."""


class RecordingFilter(Filter):  # type: ignore[misc]
    """Put one in the client's task data filters and one in its task result filters.

    Args:
        folder: where to write the records, on the client's machine.
        examples_key: the key for the number of examples in the result's meta.
        every: record only every so many rounds.
        clients: names of the sites to record; all by default.
        protocol: fields of :class:`~leakmeter.update.Protocol`, as a dictionary.
    """

    def __init__(
        self,
        folder: str,
        examples_key: str = "num_examples",
        every: int = 1,
        clients: Sequence[str] | None = None,
        protocol: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # FLARE exports jobs from attributes named like the arguments.
        self.folder = str(folder)
        self.examples_key = examples_key
        self.every = every
        self.clients = None if clients is None else list(clients)
        self.protocol = protocol
        self._recorder = Recorder(folder, every=every, clients=clients, **(protocol or {}))

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Look at ``shareable`` and pass it on unchanged."""
        try:
            if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
                self._received(shareable, fl_ctx)
            else:
                self._sent(shareable, fl_ctx)
        except Exception as problem:
            self._recorder.complain(f"a task cannot be recorded: {problem}")
        return shareable

    def _received(self, shareable: Shareable, fl_ctx: FLContext) -> None:
        turn = shareable.get_header(AppConstants.CURRENT_ROUND)
        if isinstance(turn, int) and self._recorder.wants(turn, fl_ctx.get_identity_name()):
            waiting = turn, _copy(from_shareable(shareable))
            fl_ctx.set_prop(RECEIVED, waiting, private=True, sticky=False)

    def _sent(self, shareable: Shareable, fl_ctx: FLContext) -> None:
        waiting = fl_ctx.get_prop(RECEIVED)
        if waiting is None or shareable.get_return_code() != ReturnCode.OK:
            return
        turn, before = waiting
        self._recorder.keep(
            turn,
            fl_ctx.get_identity_name(),
            lambda: self._update(before, from_shareable(shareable)),
        )

    def _update(self, before: State, result: DXO) -> Update:
        after = _copy(result)
        if result.data_kind == DataKind.WEIGHT_DIFF:
            after = {name: before[name] + change for name, change in after.items()}
        count = result.get_meta_prop(self.examples_key)
        if not isinstance(count, int):
            raise LeakmeterError(
                f"the result's meta says {self.examples_key} = {count}: "
                "send the number of examples, or say by examples_key what it is called"
            )
        before, after = same_precision(before, after)
        return Update(
            before=before, after=after, num_examples=count, protocol=told(self.protocol or {})
        )


def _copy(dxo: DXO) -> State:
    if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
        raise LeakmeterError(f"{dxo.data_kind} is neither weights nor a difference of weights")
    return {name: torch.as_tensor(value).detach().clone() for name, value in dxo.data.items()}
