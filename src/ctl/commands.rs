//! The commands that change something (management reference 3.2).

use hyper::Method;
use serde_json::{Map, Value, json};

use super::client::{Client, segment};
use super::lists::no_user;
use super::output::Printer;
use super::{Failure, Request, diagnostics, exit, lists};

/// What `help` shows.
pub fn help(tool: &str) -> String {
    format!(
        "Usage: {tool} [-p vhost] [-q] [-s] [--formatter table|json|csv] [-t seconds] <command> [arguments]\n\n\
         Users: add_user, delete_user, change_password, clear_password, authenticate_user, set_user_tags, list_users,\n  \
           set_user_limits\n\
         Rights: set_permissions, clear_permissions, list_permissions, list_user_permissions, set_topic_permissions,\n  \
           clear_topic_permissions, list_topic_permissions\n\
         Virtual hosts: add_vhost, delete_vhost, list_vhosts, set_vhost_limits, trace_on, trace_off\n\
         Policies: set_policy, clear_policy, list_policies, set_operator_policy, clear_operator_policy,\n  \
           list_operator_policies\n\
         Parameters: set_parameter, clear_parameter, list_parameters, set_global_parameter, clear_global_parameter,\n  \
           list_global_parameters\n\
         Queues and clients: list_queues, purge_queue, delete_queue, list_exchanges, list_bindings, list_connections,\n  \
           list_channels, list_consumers, close_connection, close_all_connections\n\
         Node: status, ping, check_running, check_port_connectivity, check_port_listener, check_protocol_listener,\n  \
           check_virtual_hosts, check_alarms, check_local_alarms, alarms, listeners, cluster_status, is_running,\n  \
           is_booting, server_version, await_startup, wait, stop, shutdown, enable_feature_flag, list_feature_flags,\n  \
           set_cluster_name, hash_password\n\
         Plugins (rabbitmq-plugins): list, is_enabled, enable, disable, set\n\n\
         They talk to the broker's admin socket in its data folder: give the same --data-dir or LEVERET_DATA_DIR."
    )
}

/// Runs one command.
///
/// # Errors
/// It failed, or nobody knows it.
pub async fn run(tool: &str, request: &Request, client: &Client, printer: &Printer) -> Result<(), Failure> {
    if tool == "rabbitmq-plugins" {
        return diagnostics::plugins(request, printer);
    }
    if lists::run(request, client, printer).await? || diagnostics::run(request, client, printer).await? {
        return Ok(());
    }
    if users(request, client, printer).await? || rules(request, client, printer).await? {
        return Ok(());
    }
    if contents(request, client, printer).await? {
        return Ok(());
    }
    Err(Failure::usage(format!("Command '{}' not found; see {tool} help", request.verb)))
}

/// An argument that is JSON.
fn json_argument(request: &Request, index: usize, name: &str) -> Result<Value, Failure> {
    let text = request.argument(index, name)?;
    serde_json::from_str(text)
        .map_err(|error| Failure::new(exit::DATA, format!("Could not parse JSON '{text}': {error}")))
}

async fn users(request: &Request, client: &Client, printer: &Printer) -> Result<bool, Failure> {
    let user = || request.argument(0, "USERNAME");
    let path = || Ok::<_, Failure>(format!("users/{}", segment(user()?)));
    match request.verb.as_str() {
        "add_user" => {
            let name = user()?;
            let password = match request.arguments.get(1) {
                Some(password) => password.clone(),
                None => {
                    let mut line = String::new();
                    let _ = std::io::stdin().read_line(&mut line);
                    line.trim_end_matches(['\r', '\n']).to_owned()
                }
            };
            printer.banner(&format!("Adding user \"{name}\" ..."));
            if client.ask(Method::GET, &path()?, None).await?.status == 200 {
                return Err(Failure::new(exit::SOFTWARE, format!("User \"{name}\" already exists")));
            }
            let key = if request.option("pre-hashed-password").is_some() { "password_hash" } else { "password" };
            client.put(&path()?, &json!({key: password, "tags": ""})).await?;
            printer.banner(
                "Done. Don't forget to grant the user permissions to some virtual hosts! See 'rabbitmqctl help \
                 set_permissions' to learn more.",
            );
        }
        "delete_user" => {
            printer.banner(&format!("Deleting user \"{}\" ...", user()?));
            client.delete(&path()?).await.map_err(|failure| no_user(failure, user().unwrap_or_default()))?;
        }
        "change_password" | "clear_password" | "set_user_tags" => {
            let name = user()?;
            let known = client.get(&path()?).await.map_err(|failure| no_user(failure, name))?;
            let mut body = json!({"tags": known["tags"]});
            match request.verb.as_str() {
                "change_password" => {
                    printer.banner(&format!("Changing password for user \"{name}\" ..."));
                    body["password"] = request.argument(1, "PASSWORD")?.into();
                }
                "clear_password" => printer.banner(&format!("Clearing password for user \"{name}\" ...")),
                _ => {
                    let tags = &request.arguments[1..];
                    printer.banner(&format!("Setting tags for user \"{name}\" to [{}] ...", tags.join(", ")));
                    body["tags"] = tags.iter().map(String::as_str).collect();
                    body["password_hash"] = known["password_hash"].clone();
                    body["hashing_algorithm"] = known["hashing_algorithm"].clone();
                }
            }
            client.put(&path()?, &body).await?;
        }
        "authenticate_user" => {
            let (name, password) = (user()?, request.argument(1, "PASSWORD")?);
            printer.banner(&format!("Authenticating user \"{name}\" ..."));
            let body = json!({"username": name, "password": password});
            let answer = client.ask(Method::POST, "leveret/authenticate", Some(&body)).await?;
            if answer.status >= 300 {
                return Err(Failure::new(exit::DATA, format!("failed to authenticate user \"{name}\"")));
            }
            printer.text("Success");
        }
        "set_user_limits" => {
            printer.banner(&format!(
                "Setting user limits to {} for user \"{}\" ...",
                request.argument(1, "JSON")?,
                user()?
            ));
            set_limits(client, &format!("user-limits/{}", segment(user()?)), &json_argument(request, 1, "JSON")?)
                .await?;
        }
        "hash_password" => {
            let hash = client.get(&format!("auth/hash_password/{}", segment(request.argument(0, "PASSWORD")?))).await?;
            printer.text(hash["ok"].as_str().unwrap_or_default());
        }
        "set_permissions" => {
            let (name, vhost) = (user()?, request.vhost());
            let rights = json!({
                "configure": request.argument(1, "CONFIGURE")?,
                "write": request.argument(2, "WRITE")?,
                "read": request.argument(3, "READ")?,
            });
            printer.banner(&format!("Setting permissions for user \"{name}\" in vhost \"{vhost}\" ..."));
            let path = format!("permissions/{}/{}", segment(vhost), segment(name));
            client.put(&path, &rights).await.map_err(|failure| unknown(failure, name, vhost))?;
        }
        "clear_permissions" => {
            let (name, vhost) = (user()?, request.vhost());
            printer.banner(&format!("Clearing permissions for user \"{name}\" in vhost \"{vhost}\" ..."));
            let path = format!("permissions/{}/{}", segment(vhost), segment(name));
            client.delete(&path).await.map_err(|failure| no_user(failure, name))?;
        }
        "set_topic_permissions" => {
            let (name, vhost) = (user()?, request.vhost());
            let rule = json!({
                "exchange": request.argument(1, "EXCHANGE")?,
                "write": request.argument(2, "WRITE")?,
                "read": request.argument(3, "READ")?,
            });
            printer.banner(&format!(
                "Setting topic permissions on \"{}\" for user \"{name}\" in vhost \"{vhost}\" ...",
                rule["exchange"].as_str().unwrap_or_default()
            ));
            let path = format!("topic-permissions/{}/{}", segment(vhost), segment(name));
            client.put(&path, &rule).await.map_err(|failure| unknown(failure, name, vhost))?;
        }
        "clear_topic_permissions" => {
            let (name, vhost) = (user()?, request.vhost());
            printer.banner(&format!("Clearing topic permissions for user \"{name}\" in vhost \"{vhost}\" ..."));
            let mut path = format!("topic-permissions/{}/{}", segment(vhost), segment(name));
            if let Some(exchange) = request.arguments.get(1) {
                path = format!("{path}/{}", segment(exchange));
            }
            client.delete(&path).await?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn unknown(failure: Failure, user: &str, vhost: &str) -> Failure {
    if failure.text == "vhost_or_user_not_found" {
        return Failure::new(exit::NO_USER, format!("User \"{user}\" or vhost \"{vhost}\" does not exist"));
    }
    failure
}

/// Sets each limit of an object; none of them is known to be wrong before the first is set.
async fn set_limits(client: &Client, path: &str, limits: &Value) -> Result<(), Failure> {
    let Value::Object(limits) = limits else { return Err(Failure::new(exit::DATA, "limits must be a JSON object")) };
    for (name, value) in limits {
        client.put(&format!("{path}/{}", segment(name)), &json!({"value": value})).await?;
    }
    Ok(())
}

async fn rules(request: &Request, client: &Client, printer: &Printer) -> Result<bool, Failure> {
    let vhost = request.vhost();
    let in_vhost = |kind: &str, name: &str| format!("{kind}/{}/{}", segment(vhost), segment(name));
    match request.verb.as_str() {
        "add_vhost" => {
            let name = request.argument(0, "VHOST")?;
            printer.banner(&format!("Adding vhost \"{name}\" ..."));
            let mut body = Map::new();
            for (option, key) in
                [("description", "description"), ("tags", "tags"), ("default-queue-type", "default_queue_type")]
            {
                if let Some(value) = request.option(option) {
                    body.insert(key.to_owned(), value.into());
                }
            }
            client.put(&format!("vhosts/{}", segment(name)), &Value::Object(body)).await?;
        }
        "delete_vhost" => {
            let name = request.argument(0, "VHOST")?;
            printer.banner(&format!("Deleting vhost \"{name}\" ..."));
            let deleted = client.delete(&format!("vhosts/{}", segment(name))).await;
            deleted.map_err(|failure| match failure.code {
                exit::USAGE => Failure::new(exit::DATA, format!("Virtual host '{name}' does not exist")),
                _ => failure,
            })?;
        }
        "trace_on" | "trace_off" => {
            let on = request.verb == "trace_on";
            client.put(&format!("vhosts/{}", segment(vhost)), &json!({"tracing": on})).await?;
            printer.text(&format!("Trace {} for vhost {vhost}", if on { "enabled" } else { "disabled" }));
        }
        "set_vhost_limits" => {
            printer.banner(&format!(
                "Setting vhost limits to \"{}\" for vhost \"{vhost}\" ...",
                request.argument(0, "JSON")?
            ));
            set_limits(client, &format!("vhost-limits/{}", segment(vhost)), &json_argument(request, 0, "JSON")?)
                .await?;
        }
        verb @ ("set_policy" | "set_operator_policy") => {
            let (name, pattern) = (request.argument(0, "NAME")?, request.argument(1, "PATTERN")?);
            let definition = json_argument(request, 2, "DEFINITION")?;
            let priority = request.option("priority").unwrap_or("0");
            let what = if verb == "set_policy" { "policy" } else { "operator policy override" };
            printer.banner(&format!(
                "Setting {what} \"{name}\" for pattern \"{pattern}\" to \"{}\" with priority \"{priority}\" for vhost \
                 \"{vhost}\" ...",
                request.arguments[2]
            ));
            let mut body = json!({"pattern": pattern, "definition": definition, "priority": priority});
            if let Some(apply_to) = request.option("apply-to") {
                body["apply-to"] = apply_to.into();
            }
            let kind = if verb == "set_policy" { "policies" } else { "operator-policies" };
            client.put(&in_vhost(kind, name), &body).await?;
        }
        verb @ ("clear_policy" | "clear_operator_policy") => {
            let name = request.argument(0, "NAME")?;
            printer.banner(&format!("Clearing policy \"{name}\" on vhost \"{vhost}\" ..."));
            let kind = if verb == "clear_policy" { "policies" } else { "operator-policies" };
            client.delete(&in_vhost(kind, name)).await?;
        }
        verb @ ("set_parameter" | "clear_parameter") => {
            let (component, name) = (request.argument(0, "COMPONENT")?, request.argument(1, "NAME")?);
            let path = format!("parameters/{}/{}/{}", segment(component), segment(vhost), segment(name));
            if verb == "clear_parameter" {
                printer.banner(&format!(
                    "Clearing runtime parameter \"{name}\" for component \"{component}\" on vhost \"{vhost}\" ..."
                ));
                client.delete(&path).await?;
            } else {
                let value = json_argument(request, 2, "VALUE")?;
                printer.banner(&format!("Setting runtime parameter \"{name}\" for component \"{component}\" to \"{}\" in vhost \"{vhost}\" ...", request.arguments[2]));
                client.put(&path, &json!({"value": value})).await?;
            }
        }
        "set_global_parameter" => {
            let name = request.argument(0, "NAME")?;
            let value = json_argument(request, 1, "VALUE")?;
            printer.banner(&format!("Setting global runtime parameter \"{name}\" to \"{}\" ...", request.arguments[1]));
            client.put(&format!("global-parameters/{}", segment(name)), &json!({"value": value})).await?;
        }
        "clear_global_parameter" => {
            let name = request.argument(0, "NAME")?;
            printer.banner(&format!("Clearing global runtime parameter \"{name}\" ..."));
            client.delete(&format!("global-parameters/{}", segment(name))).await?;
        }
        "set_cluster_name" => {
            let name = request.argument(0, "NAME")?;
            printer.banner(&format!("Setting cluster name to {name} ..."));
            client.put("cluster-name", &json!({"name": name})).await?;
        }
        "enable_feature_flag" => {
            let name = request.argument(0, "NAME")?;
            printer.banner(&format!("Enabling feature flag \"{name}\" ..."));
            client.put(&format!("feature-flags/{}/enable", segment(name)), &json!({})).await?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

async fn contents(request: &Request, client: &Client, printer: &Printer) -> Result<bool, Failure> {
    let vhost = request.vhost();
    match request.verb.as_str() {
        verb @ ("purge_queue" | "delete_queue") => {
            let name = request.argument(0, "QUEUE")?;
            let path = format!("queues/{}/{}", segment(vhost), segment(name));
            let queue = client.ask(Method::GET, &path, None).await?;
            if queue.status == 404 {
                return Err(Failure::usage("No such queue was found"));
            }
            if verb == "purge_queue" {
                printer.banner(&format!("Purging queue '{name}' in vhost '{vhost}' ..."));
                client.delete(&format!("{path}/contents")).await?;
            } else {
                printer.banner(&format!("Deleting queue '{name}' on vhost '{vhost}' ..."));
                let flag = |option: &str| if request.option(option).is_some() { "true" } else { "false" };
                let (empty, unused) = (flag("if-empty"), flag("if-unused"));
                client.delete(&format!("{path}?if-empty={empty}&if-unused={unused}")).await?;
                let ready = &queue.body["messages_ready"];
                printer.text(&format!("Queue was successfully deleted with {ready} ready messages"));
            }
        }
        "close_connection" => {
            let (name, reason) = (request.argument(0, "PID")?, request.argument(1, "REASON")?);
            printer.banner(&format!("Closing connection {name}, reason: {reason}..."));
            close(client, name, reason).await?;
        }
        "close_all_connections" => {
            let reason = request.argument(0, "REASON")?;
            let all = request.option("global").is_some();
            let path = if all { "connections".to_owned() } else { format!("vhosts/{}/connections", segment(vhost)) };
            let connections = client.get(&path).await?;
            let names = connections.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
            let limit =
                request.option("limit").and_then(|limit| limit.parse::<usize>().ok()).filter(|limit| *limit > 0);
            let mut closed = 0;
            for name in names.take(limit.unwrap_or(usize::MAX)) {
                closed += usize::from(close(client, name, reason).await.is_ok());
            }
            printer.text(&format!("Closed {closed} connections"));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

async fn close(client: &Client, name: &str, reason: &str) -> Result<(), Failure> {
    let body = json!({"name": name, "reason": reason});
    client.must(Method::POST, "leveret/close-connection", Some(&body)).await.map(|_| ())
}
