//! The commands that look at the node (management reference 3.2, 3.3), and those of `rabbitmq-plugins`.

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Map, Value, json};

use super::client::{Client, segment};
use super::output::{Format, Printer};
use super::{Failure, Request, exit};

/// Runs a command; false if it is none of these.
///
/// # Errors
/// The node is not well, or does not answer.
pub async fn run(request: &Request, client: &Client, printer: &Printer) -> Result<bool, Failure> {
    match request.verb.as_str() {
        "await_startup" => await_startup(request, client).await?,
        "wait" => {
            printer.banner("Waiting for the broker ...");
            await_startup(request, client).await?;
        }
        "ping" => {
            let node = node(client).await?;
            let ms = request.timeout.unwrap_or(Duration::from_secs(60)).as_millis();
            printer.banner(&format!(
                "Will ping {node}. This only checks if the OS process is running and registered with epmd. Timeout: \
                 {ms} ms."
            ));
            printer.text("Ping succeeded");
        }
        "check_running" => {
            let node = node(client).await?;
            printer.banner(&format!("Checking if RabbitMQ is running on node {node} ..."));
            printer.text(&format!("RabbitMQ on node {node} is fully booted and running"));
        }
        "is_running" => {
            let running = client.get("whoami").await.is_ok();
            printer.text(&format!("RabbitMQ on node {} running", if running { "is" } else { "is not" }));
        }
        "is_booting" => printer.text("RabbitMQ on node is not currently booting"),
        "check_local_alarms" | "check_alarms" | "alarms" => {
            let node = node(client).await?;
            let local = request.verb == "check_local_alarms";
            let answer = client
                .ask(Method::GET, if local { "health/checks/local-alarms" } else { "health/checks/alarms" }, None)
                .await?;
            if answer.status == 200 {
                let where_ = if local { "local alarms" } else { "alarms, local or clusterwide" };
                printer.text(&format!("Node {node} reported no {where_}"));
            } else {
                let resources = answer.body["alarms"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|alarm| alarm["resource"].as_str());
                let text = format!("Node {node} reported alarms: {}", resources.collect::<Vec<_>>().join(", "));
                if request.verb != "alarms" {
                    return Err(Failure::new(exit::UNAVAILABLE, text));
                }
                printer.text(&text);
            }
        }
        "check_virtual_hosts" => {
            let node = node(client).await?;
            client.get("health/checks/virtual-hosts").await?;
            printer.text(&format!("Node {node} reported all vhosts as running"));
        }
        "check_port_listener" => check_listener(request, client, printer, "port").await?,
        "check_protocol_listener" => check_listener(request, client, printer, "protocol").await?,
        "check_port_connectivity" => check_connectivity(client, printer).await?,
        // They check nothing in RabbitMQ any more.
        "node_health_check" => printer.text(&format!("Health check passed for node {}", node(client).await?)),
        "server_version" => {
            let overview = client.get("overview").await?;
            printer.text(overview["rabbitmq_version"].as_str().unwrap_or_default());
        }
        "erlang_version" => printer.text(client.get("overview").await?["erlang_version"].as_str().unwrap_or_default()),
        "listeners" => {
            let overview = client.get("overview").await?;
            printer.banner(&format!(
                "Asking node {} to report its protocol listeners ...",
                overview["node"].as_str().unwrap_or_default()
            ));
            if printer.format == Format::Table {
                listener_lines(&overview).iter().for_each(|line| printer.text(line));
            } else {
                let rows: Vec<Map<String, Value>> = overview["listeners"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_object)
                    .cloned()
                    .collect();
                printer.rows(&["node", "protocol", "ip_address", "port"], &rows);
            }
        }
        "cluster_status" => {
            let overview = client.get("overview").await?;
            let node = overview["node"].as_str().unwrap_or_default().to_owned();
            if printer.format == Format::Json {
                println!(
                    "{}",
                    json!({"cluster_name": overview["cluster_name"], "running_nodes": [node], "disk_nodes": [node], "partitions": {}, "alarms": []})
                );
            } else {
                printer.banner(&format!("Cluster status of node {node} ..."));
                printer.text(&format!(
                    "Basics\n\nCluster name: {}\n\nDisk Nodes\n\n{node}\n\nRunning Nodes\n\n{node}",
                    overview["cluster_name"].as_str().unwrap_or_default()
                ));
            }
        }
        "status" => status(client, printer).await?,
        "stop" | "shutdown" => {
            let node = node(client).await?;
            printer.banner(&format!("Stopping and halting node {node} ..."));
            client.must(Method::POST, "leveret/stop", None).await?;
            // As RabbitMQ's: it is over when this returns.
            let since = Instant::now();
            while client.ask(Method::GET, "whoami", None).await.is_ok() && since.elapsed() < Duration::from_secs(60) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The node's name, if it answers.
async fn node(client: &Client) -> Result<String, Failure> {
    Ok(client.get("overview").await?["node"].as_str().unwrap_or_default().to_owned())
}

async fn await_startup(request: &Request, client: &Client) -> Result<(), Failure> {
    let patience = request.timeout.unwrap_or(Duration::from_secs(300));
    let since = Instant::now();
    loop {
        match client.get("whoami").await {
            Ok(_) => return Ok(()),
            Err(failure) if since.elapsed() >= patience => return Err(Failure::new(exit::TIMEOUT, failure.text)),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn check_listener(request: &Request, client: &Client, printer: &Printer, kind: &str) -> Result<(), Failure> {
    let wanted = request.argument(0, &kind.to_uppercase())?;
    let node = node(client).await?;
    let answer = client.ask(Method::GET, &format!("health/checks/{kind}-listener/{}", segment(wanted)), None).await?;
    match answer.status {
        200 => {
            printer.text(&format!("A listener for {kind} {wanted} is running on node {node}."));
            Ok(())
        }
        400 => Err(Failure::usage(format!("'{wanted}' is no {kind}"))),
        _ => Err(Failure::new(exit::UNAVAILABLE, format!("No listener for {kind} {wanted} is active on node {node}"))),
    }
}

async fn check_connectivity(client: &Client, printer: &Printer) -> Result<(), Failure> {
    let overview = client.get("overview").await?;
    let node = overview["node"].as_str().unwrap_or_default();
    printer.banner(&format!(
        "Testing TCP connections to all active listeners on node {node} using hostname resolution ..."
    ));
    let mut ports = Vec::new();
    for listener in overview["listeners"].as_array().into_iter().flatten() {
        let (Some(ip), Some(port)) = (listener["ip_address"].as_str(), listener["port"].as_u64()) else { continue };
        // The address of any interface is reached through the machine's own.
        let host = match ip {
            "0.0.0.0" => "127.0.0.1",
            "::" => "::1",
            ip => ip,
        };
        let address = (host, port as u16);
        let connected = tokio::time::timeout(Duration::from_secs(30), tokio::net::TcpStream::connect(address)).await;
        if !matches!(connected, Ok(Ok(_))) {
            let text = format!("Connection to ports of the following listeners on node {node} failed: {ip}:{port}");
            return Err(Failure::new(exit::UNAVAILABLE, text));
        }
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    let ports: Vec<String> = ports.iter().map(u64::to_string).collect();
    printer.text(&format!(
        "Successfully connected to ports {} on node {node} (using node hostname resolution)",
        ports.join(", ")
    ));
    Ok(())
}

fn listener_lines(overview: &Value) -> Vec<String> {
    let listeners = overview["listeners"].as_array().into_iter().flatten();
    let line = |listener: &Value| {
        let (ip, protocol) =
            (listener["ip_address"].as_str().unwrap_or(""), listener["protocol"].as_str().unwrap_or(""));
        let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        let purpose = match protocol {
            "amqp" => "AMQP 0-9-1",
            "amqp/ssl" => "AMQP 0-9-1 over TLS",
            "http" => "HTTP API",
            "https" => "HTTP API over TLS (HTTPS)",
            "http/prometheus" => "Prometheus exporter API over HTTP",
            other => other,
        };
        format!("Interface: {ip}, port: {}, protocol: {protocol}, purpose: {purpose}", listener["port"])
    };
    listeners.map(line).collect()
}

async fn status(client: &Client, printer: &Printer) -> Result<(), Failure> {
    let overview = client.get("overview").await?;
    let nodes = client.get("nodes").await?;
    let vhosts = client.get("vhosts").await?.as_array().map_or(0, Vec::len);
    let node = &nodes[0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let uptime_s = node["uptime"].as_u64().unwrap_or(0) / 1000;
    let totals = &overview["object_totals"];
    if printer.format == Format::Json {
        let status = json!({
            "rabbitmq_version": overview["rabbitmq_version"],
            "product_name": overview["product_name"],
            "product_version": overview["product_version"],
            "erlang_version": overview["erlang_full_version"],
            "os": std::env::consts::OS,
            "pid": text(&node["os_pid"]).parse::<u64>().unwrap_or(0),
            "uptime": uptime_s,
            "alarms": [],
            "listeners": overview["listeners"],
            "totals": {
                "connection_count": totals["connections"],
                "queue_count": totals["queues"],
                "virtual_host_count": vhosts,
            },
            "memory": {"total": {"rss": node["mem_used"]}},
            "disk_free": node["disk_free"],
            "disk_free_limit": node["disk_free_limit"],
            "run_queue": 0,
            "active_plugins": node["enabled_plugins"],
            "data_directory": node["db_dir"],
            "config_files": node["config_files"],
            "log_files": node["log_files"],
            "net_ticktime": 60,
            "vm_memory_high_watermark_limit": node["mem_limit"],
        });
        println!("{status}");
        return Ok(());
    }
    printer.banner(&format!("Status of node {} ...", text(&node["name"])));
    let list = |value: &Value| {
        let all = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        all.map(|item| format!(" * {item}")).collect::<Vec<_>>().join("\n")
    };
    printer.text(&format!(
        "Runtime\n\nOS PID: {}\nOS: {}\nUptime (seconds): {uptime_s}\nIs under maintenance?: false\nRabbitMQ version: \
         {}\nProduct: {} {}\nNode name: {}\n\nPlugins\n\nEnabled plugins:\n{}\n\nData directory\n\nNode data directory: \
         {}\n\nConfig files\n\n{}\n\nLog file(s)\n\n{}\n\nAlarms\n\n(none)\n\nTags\n\n(none)\n\nMemory\n\nTotal memory \
         used: {:.4} gb\n\nTotals\n\nConnection count: {}\nQueue count: {}\nVirtual host count: {vhosts}\n\n\
         Listeners\n\n{}",
        text(&node["os_pid"]),
        std::env::consts::OS,
        text(&overview["rabbitmq_version"]),
        text(&overview["product_name"]),
        text(&overview["product_version"]),
        text(&node["name"]),
        list(&node["enabled_plugins"]),
        text(&node["db_dir"]),
        list(&node["config_files"]),
        list(&node["log_files"]),
        node["mem_used"].as_f64().unwrap_or(0.0) / 1e9,
        totals["connections"],
        totals["queues"],
        listener_lines(&overview).join("\n"),
    ));
    Ok(())
}

/// There are no plugins: what those do that we know is always on, and to enable them changes nothing.
pub fn plugins(request: &Request, printer: &Printer) -> Result<(), Failure> {
    const BUILT_IN: [&str; 3] = ["rabbitmq_management", "rabbitmq_management_agent", "rabbitmq_prometheus"];
    let named = || {
        if request.arguments.is_empty() {
            return Err(Failure::usage(format!("{}: name at least one plugin", request.verb)));
        }
        let strange = request.arguments.iter().find(|name| !name.starts_with("rabbitmq_"));
        match strange {
            Some(name) => Err(Failure::usage(format!("The following plugins could not be found:\n  {name}"))),
            None => Ok(()),
        }
    };
    match request.verb.as_str() {
        "list" => {
            printer.banner("Listing plugins with pattern \".*\" ...");
            if printer.format == Format::Json {
                let plugins = BUILT_IN.map(|name| json!({"name": name, "enabled": "enabled", "running": true}));
                println!("{}", json!({"status": "running", "plugins": plugins}));
            } else if request.option("m").is_some() || request.option("minimal").is_some() {
                BUILT_IN.iter().for_each(|name| printer.text(name));
            } else {
                BUILT_IN.iter().for_each(|name| printer.text(&format!("[E*] {name}")));
            }
        }
        "enable" | "set" => {
            named()?;
            printer.banner("Enabling plugins on node:");
            request.arguments.iter().for_each(|name| printer.banner(name));
            printer.banner("The following plugins have been configured:");
            BUILT_IN.iter().for_each(|name| printer.banner(&format!("  {name}")));
            printer.banner(&format!("started {} plugins.", request.arguments.len()));
        }
        "disable" => {
            named()?;
            printer.banner("Plugin configuration unchanged.");
        }
        "is_enabled" => {
            named()?;
            let missing = request.arguments.iter().find(|name| !BUILT_IN.contains(&name.as_str()));
            match missing {
                Some(name) => {
                    return Err(Failure::new(exit::UNAVAILABLE, format!("Plugin {name} is not enabled on node")));
                }
                None => printer.text(&format!("Plugin {} is enabled on node", request.arguments.join(", "))),
            }
        }
        verb => return Err(Failure::usage(format!("Command '{verb}' not found; see rabbitmq-plugins help"))),
    }
    Ok(())
}
