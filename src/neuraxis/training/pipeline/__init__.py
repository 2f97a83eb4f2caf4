"""Pipeline parallelism: a module in stages on several ranks or devices."""
