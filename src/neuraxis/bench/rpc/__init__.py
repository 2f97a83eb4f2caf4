"""`neuraxis bench rpc`: remote calls, compared with other libraries."""
