"""Every client and framework there is a program for, in the order of the table."""

from .languages import C, Go, Java, Node, Python, Rust, Script

ALL = [
    Rust("rust-lapin", "lapin", [[]]),
    Python("python-pika", "pika, blocking", [["features.py"], ["interop.py"]]),
    Python("python-pika-asyncio", "pika, asyncio adapter", [["features_asyncio.py"]], folder="python-pika"),
    Python("python-aio-pika", "aio-pika", [["features.py"]]),
    Python("python-amqpstorm", "amqpstorm", [["features.py"]]),
    Python("python-py-amqp", "py-amqp", [["features.py"]]),
    Node("node-amqplib", "amqplib", [["interop.js"]]),
    Go("go-amqp091", "amqp091-go", [[]]),
    Java("java-amqp-client", "amqp-client", [["interop.Main"]]),
]

CLIENTS = {client.name: client for client in ALL}
