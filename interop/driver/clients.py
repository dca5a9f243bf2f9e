"""Every client and framework there is a program for, in the order of the table."""

from .languages import C, Go, Java, Node, Python, Rust, Script

ALL = [
    Rust("rust-lapin", "lapin", [[]]),
    Python("python-pika", "pika, blocking", [["features.py"], ["interop.py"]]),
    Python("python-pika-asyncio", "pika, asyncio adapter", [["features_asyncio.py"]], folder="python-pika"),
    Python("python-aio-pika", "aio-pika", [["features.py"]]),
    Python("python-amqpstorm", "amqpstorm", [["features.py"]]),
    Python("python-py-amqp", "py-amqp", [["features.py"]]),
    Node("node-amqplib", "amqplib, promises", [["features.js"], ["interop.js"]]),
    Node("node-amqplib-callback", "amqplib, callbacks", [["features.js", "callback"]], folder="node-amqplib"),
    Node("node-rabbitmq-client", "rabbitmq-client", [["features.js"]]),
    Node("node-cloudamqp-client", "@cloudamqp/amqp-client", [["features.js"]]),
    Go("go-amqp091", "amqp091-go", [[]]),
    Java("java-amqp-client", "amqp-client", [["interop.Main"]]),
    Script("C", ["bash"], "amqp-tools", "rabbitmq-c, its command-line tools", [["features.sh"]], {"amqp-get": "amqp-tools"}),
    Script("PHP", ["php"], "php-amqplib", "php-amqplib", [["features.php"]],
           {"php": "php-cli", "/usr/share/php/PhpAmqpLib/autoload.php": "php-amqplib"}),
    Script("Ruby", ["ruby"], "ruby-bunny", "bunny", [["features.rb"]], {"ruby": "ruby", "ruby:bunny": "ruby-bunny"}),
    Python("python-celery", "Celery", [["program.py"]], framework=True),
    Python("python-kombu", "kombu", [["program.py"]], framework=True),
    Python("python-dramatiq", "Dramatiq", [["program.py"]], framework=True),
    Python("python-faststream", "FastStream", [["program.py"]], framework=True),
    Go("go-watermill", "Watermill", [[]], framework=True),
    Java("java-spring-amqp", "Spring AMQP", [["interop.Main"]], framework=True),
    Node("node-amqp-connection-manager", "amqp-connection-manager", [["program.js"]], framework=True),
    Node("node-rascal", "rascal", [["program.js"]], framework=True),
    Node("node-nestjs", "NestJS microservices", [["program.js"]], framework=True),
    Python("python-taskiq", "taskiq", [["program.py"]], framework=True),
]

CLIENTS = {client.name: client for client in ALL}
