//! `list_...`: what is listed, from where, and by which columns (management reference 3.4).

use serde_json::{Map, Value};

use super::client::{Client, segment};
use super::output::Printer;
use super::{Failure, Request};

/// A list command.
struct List {
    verb: &'static str,
    /// `{vhost}` stands for the vhost.
    path: &'static str,
    /// `{vhost}` stands for the vhost.
    banner: &'static str,
    /// Shown when no columns are asked for.
    columns: &'static [&'static str],
    /// Names of columns that differ from those of the API: ours, theirs with dots.
    renamed: &'static [(&'static str, &'static str)],
    /// The columns may be chosen.
    chosen: bool,
}

const LISTS: &[List] = &[
    List {
        verb: "list_queues",
        path: "queues/{vhost}",
        banner: "Listing queues for vhost {vhost} ...",
        columns: &["name", "messages"],
        renamed: &[("slave_pids", "none"), ("pid", "node")],
        chosen: true,
    },
    List {
        verb: "list_exchanges",
        path: "exchanges/{vhost}",
        banner: "Listing exchanges for vhost {vhost} ...",
        columns: &["name", "type"],
        renamed: &[],
        chosen: true,
    },
    List {
        verb: "list_bindings",
        path: "bindings/{vhost}",
        banner: "Listing bindings for vhost {vhost}...",
        columns: &["source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments"],
        renamed: &[
            ("source_name", "source"),
            ("destination_name", "destination"),
            ("destination_kind", "destination_type"),
        ],
        chosen: true,
    },
    List {
        verb: "list_connections",
        path: "connections",
        banner: "Listing connections ...",
        columns: &["user", "peer_host", "peer_port", "state"],
        renamed: &[],
        chosen: true,
    },
    List {
        verb: "list_channels",
        path: "channels",
        banner: "Listing channels ...",
        columns: &["pid", "user", "consumer_count", "messages_unacknowledged"],
        renamed: &[("pid", "name"), ("connection", "connection_details.name")],
        chosen: true,
    },
    List {
        verb: "list_consumers",
        path: "consumers/{vhost}",
        banner: "Listing consumers in vhost {vhost} ...",
        columns: &[
            "queue_name",
            "channel_pid",
            "consumer_tag",
            "ack_required",
            "prefetch_count",
            "active",
            "arguments",
        ],
        renamed: &[("queue_name", "queue.name"), ("channel_pid", "channel_details.name")],
        chosen: true,
    },
    List {
        verb: "list_users",
        path: "users",
        banner: "Listing users ...",
        columns: &["user", "tags"],
        renamed: &[("user", "name")],
        chosen: false,
    },
    List {
        verb: "list_vhosts",
        path: "vhosts",
        banner: "Listing vhosts ...",
        columns: &["name"],
        renamed: &[],
        chosen: true,
    },
    List {
        verb: "list_permissions",
        path: "vhosts/{vhost}/permissions",
        banner: "Listing permissions for vhost \"{vhost}\" ...",
        columns: &["user", "configure", "write", "read"],
        renamed: &[],
        chosen: false,
    },
    List {
        verb: "list_topic_permissions",
        path: "vhosts/{vhost}/topic-permissions",
        banner: "Listing topic permissions for vhost \"{vhost}\" ...",
        columns: &["user", "exchange", "write", "read"],
        renamed: &[],
        chosen: false,
    },
    List {
        verb: "list_policies",
        path: "policies/{vhost}",
        banner: "Listing policies for vhost \"{vhost}\" ...",
        columns: &["vhost", "name", "pattern", "apply-to", "definition", "priority"],
        renamed: &[],
        chosen: false,
    },
    List {
        verb: "list_operator_policies",
        path: "operator-policies/{vhost}",
        banner: "Listing operator policy overrides for vhost \"{vhost}\" ...",
        columns: &["vhost", "name", "pattern", "apply-to", "definition", "priority"],
        renamed: &[],
        chosen: false,
    },
    List {
        verb: "list_parameters",
        path: "parameters",
        banner: "Listing runtime parameters for vhost \"{vhost}\" ...",
        columns: &["component", "name", "value"],
        renamed: &[],
        chosen: false,
    },
    List {
        verb: "list_global_parameters",
        path: "global-parameters",
        banner: "Listing global runtime parameters ...",
        columns: &["name", "value"],
        renamed: &[],
        chosen: false,
    },
    List {
        verb: "list_feature_flags",
        path: "feature-flags",
        banner: "Listing feature flags ...",
        columns: &["name", "state"],
        renamed: &[],
        chosen: true,
    },
];

/// Runs a list command; false if it is none.
pub async fn run(request: &Request, client: &Client, printer: &Printer) -> Result<bool, Failure> {
    if request.verb == "list_user_permissions" {
        let user = request.argument(0, "USERNAME")?;
        printer.banner(&format!("Listing permissions for user \"{user}\" ..."));
        let rows = fetch(client, &format!("users/{}/permissions", segment(user))).await;
        let rows = rows.map_err(|failure| no_user(failure, user))?;
        printer.rows(&["vhost", "configure", "write", "read"], &rows);
        return Ok(true);
    }
    let Some(list) = LISTS.iter().find(|list| list.verb == request.verb) else { return Ok(false) };
    let vhost = request.vhost();
    let mut columns: Vec<&str> = list.columns.to_vec();
    if list.chosen && !request.arguments.is_empty() {
        columns = request.arguments.iter().flat_map(|word| word.split(',')).filter(|word| !word.is_empty()).collect();
    }
    if list.chosen {
        printer.banner("Timeout: 60.0 seconds ...");
    }
    printer.banner(&list.banner.replace("{vhost}", vhost));
    let rows = fetch(client, &list.path.replace("{vhost}", &segment(vhost))).await?;
    let rows: Vec<Map<String, Value>> = rows.into_iter().map(|row| renamed(list, row)).collect();
    printer.rows(&columns, &rows);
    Ok(true)
}

/// The failure of a command about a user who is not there.
pub fn no_user(failure: Failure, user: &str) -> Failure {
    match failure.code {
        super::exit::USAGE => Failure::new(super::exit::NO_USER, format!("User \"{user}\" does not exist")),
        _ => failure,
    }
}

async fn fetch(client: &Client, path: &str) -> Result<Vec<Map<String, Value>>, Failure> {
    let Value::Array(rows) = client.get(path).await? else { return Ok(Vec::new()) };
    Ok(rows.into_iter().filter_map(|row| if let Value::Object(row) = row { Some(row) } else { None }).collect())
}

fn renamed(list: &List, mut row: Map<String, Value>) -> Map<String, Value> {
    if list.verb == "list_connections"
        && let Some(name) = row.get("name").and_then(Value::as_str)
    {
        // One word, which `close_connection` takes.
        row.insert("pid".to_owned(), format!("<{}>", name.replace(' ', "")).into());
    }
    if list.verb == "list_bindings" {
        row.insert("source_kind".to_owned(), "exchange".into());
    }
    for (ours, theirs) in list.renamed {
        let (first, rest) = theirs.split_once('.').unwrap_or((theirs, ""));
        let value = row.get(first).map(|value| if rest.is_empty() { value } else { &value[rest] });
        if let Some(value) = value.cloned() {
            row.insert((*ours).to_owned(), value);
        }
    }
    row
}
