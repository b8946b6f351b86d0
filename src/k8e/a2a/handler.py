"""The protocol's requests → records and errands: the library's seam, behind which both of its bindings and versions are.

Its own handler is not used: that one copies a whole task for every piece of output and cuts off slow readers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size

from k8e.a2a.agent import Agent
from k8e.a2a.records import WAITING, Record
from k8e.http_visitor import Visitor

__all__ = ["VISITOR", "Handler"]

VISITOR = "visitor"
"""Where a call's context has who asks."""
CANCEL_S = 30.0
"""In which the command of a canceled task must be gone."""


class Handler(RequestHandler):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        record = self._begun(params, context)
        if not params.configuration.return_immediately:
            await record.rest(WAITING)
        return apply_history_length(record.snapshot(), params.configuration)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        record = self._begun(params, context)
        async with contextlib.aclosing(_seen(record)) as events:
            async for event in events:
                yield apply_history_length(event, params.configuration) if isinstance(event, Task) else event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        record = self._found(params.id, context)
        if record.is_over:
            raise UnsupportedOperationError(message="the task is over: get it instead")
        async with contextlib.aclosing(_seen(record)) as events:
            async for event in events:
                yield event

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        validate_proto_required_fields(params)
        validate_history_length(params)
        return apply_history_length(self._found(params.id, context).snapshot(), params)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        page = self._agent.shelf.page(_visitor(context).owner, params)
        tasks = [apply_history_length(task, params) for task in page.tasks]
        page.ClearField("tasks")
        page.tasks.extend(tasks)
        return page

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        record = self._found(params.id, context)
        if record.is_over:
            raise TaskNotCancelableError(message="the task is over")
        self._agent.cancel(record)
        try:
            async with asyncio.timeout(CANCEL_S):
                await record.rest()
        except TimeoutError as error:
            raise InternalError(message="the task does not end; look again later") from error
        if record.state != TaskState.TASK_STATE_CANCELED:
            raise TaskNotCancelableError(message="the task ended by itself meanwhile")
        return record.snapshot()

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        raise PushNotificationNotSupportedError(message=NO_PUSH)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        raise PushNotificationNotSupportedError(message=NO_PUSH)

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        raise PushNotificationNotSupportedError(message=NO_PUSH)

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        raise PushNotificationNotSupportedError(message=NO_PUSH)

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        raise ExtendedAgentCardNotConfiguredError(message="there is one card, and everybody may read it")

    def _begun(self, params: SendMessageRequest, context: ServerCallContext) -> Record:
        """The task that a message begins or goes on with, already under way. Raises: A2AError."""
        validate_proto_required_fields(params)
        validate_history_length(params.configuration)
        if params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError(message=NO_PUSH)
        message = params.message
        if len(message.context_id) > ID_CHARS:
            raise InvalidParamsError(message=f"contextId: at most {ID_CHARS} characters")
        if not message.task_id:
            return self._agent.begin(_visitor(context), message)
        record = self._found(message.task_id, context)
        if message.context_id and message.context_id != record.context_id:
            raise InvalidParamsError(message="contextId: is not that of the task")
        if record.state != TaskState.TASK_STATE_INPUT_REQUIRED:
            raise UnsupportedOperationError(
                message="the task takes no more messages: send one with its contextId alone, which begins another"
            )
        if trouble := self._agent.go_on(_visitor(context), record, message):
            raise UnsupportedOperationError(message=trouble)
        return record

    def _found(self, task_id: str, context: ServerCallContext) -> Record:
        record = self._agent.shelf.find(_visitor(context).owner, task_id)
        if record is None:
            raise TaskNotFoundError(message=NOT_FOUND)
        return record


ID_CHARS = 256
NO_PUSH = "push notifications are not offered: stream the message, subscribe to the task, or get it"
NOT_FOUND = "no such task: it is not yours, made room for newer ones, or this agent was restarted since"


def _visitor(context: ServerCallContext) -> Visitor:
    visitor: Visitor = context.state[VISITOR]
    return visitor


async def _seen(record: Record) -> AsyncGenerator[Task | Event]:
    """The task as it is, then what happens to it, until it rests."""
    mark = record.mark()
    yield record.snapshot()
    async for update in record.follow(mark):
        yield update
