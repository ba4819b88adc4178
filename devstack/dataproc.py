"""A stand-in for the batches of Google's Dataproc: the interface that Google's own client speaks, gRPC. It starts a
local Spark for each batch. Needs Google's provider.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
from google.cloud.dataproc_v1 import Batch, BatchControllerClient, CreateBatchRequest, GetBatchRequest
from google.cloud.dataproc_v1.services.batch_controller.transports import BatchControllerGrpcTransport
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from devstack.spark_services import SparkService, State

_STATES = {
    State.PENDING: Batch.State.PENDING,
    State.RUNNING: Batch.State.RUNNING,
    State.SUCCEEDED: Batch.State.SUCCEEDED,
    State.FAILED: Batch.State.FAILED,
    State.CANCELLED: Batch.State.CANCELLED,
}


class DataprocService(SparkService):
    """Batches (https://cloud.google.com/dataproc-serverless/docs/reference/rpc), on a free port of this machine."""

    def __init__(self) -> None:
        super().__init__()
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "google.cloud.dataproc.v1.BatchController",
                    {
                        "CreateBatch": grpc.unary_unary_rpc_method_handler(
                            self._create, CreateBatchRequest.deserialize, operations_pb2.Operation.SerializeToString
                        ),
                        "GetBatch": grpc.unary_unary_rpc_method_handler(
                            self._get, GetBatchRequest.deserialize, Batch.serialize
                        ),
                    },
                ),
                grpc.method_handlers_generic_handler(
                    "google.longrunning.Operations",
                    {
                        "CancelOperation": grpc.unary_unary_rpc_method_handler(
                            self._cancel,
                            operations_pb2.CancelOperationRequest.FromString,
                            empty_pb2.Empty.SerializeToString,
                        )
                    },
                ),
            )
        )
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self._numbers: dict[str, int] = {}

    @property
    def connection(self) -> dict[str, Any]:
        return {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": "orders-project"}}

    def client(self) -> BatchControllerClient:
        """Return a client, whose addresses are otherwise those of Google."""
        channel = grpc.insecure_channel(f"127.0.0.1:{self._port}")
        return BatchControllerClient(transport=BatchControllerGrpcTransport(channel=channel))

    def start(self) -> Self:
        self._server.start()
        return self

    def close(self) -> None:
        self._server.stop(None).wait()
        super().close()

    def _create(self, request: CreateBatchRequest, context: grpc.ServicerContext) -> operations_pb2.Operation:
        self.requests.append(CreateBatchRequest.to_json(request))
        job = request.batch.pyspark_batch
        properties = request.batch.runtime_config.properties
        name = f"{request.parent.replace('/regions/', '/locations/')}/batches/{request.batch_id}"
        self._numbers[name] = self.begin(
            job.main_python_file_uri, job.args, dict(properties), ",".join(job.python_file_uris)
        )
        return operations_pb2.Operation(name=self._operation(name))

    def _get(self, request: GetBatchRequest, context: grpc.ServicerContext) -> Batch:
        self.requests.append(GetBatchRequest.to_json(request))
        if request.name not in self._numbers:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: Batch {request.name}")
        run = self.runs[self._numbers[request.name]]
        state = run.state
        return Batch(
            name=request.name,
            state=_STATES[state],
            state_message=run.reason if state is State.FAILED else "",
            operation=self._operation(request.name),
        )

    def _cancel(self, request: operations_pb2.CancelOperationRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        self.requests.append(str(request))
        (number,) = (number for name, number in self._numbers.items() if self._operation(name) == request.name)
        self.runs[number].cancel()
        return empty_pb2.Empty()

    @staticmethod
    def _operation(batch: str) -> str:
        return batch.replace("/batches/", "/operations/of-")
