//! Parameters: JSON values that operators keep under a name, for a component of a vhost or for the whole broker.
//! Nothing here acts on them; tools and definitions expect them to be there.

use std::collections::BTreeMap;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::Value;

use super::{AdminError, Outcome};
use crate::model::record::{DefinitionKey, DefinitionKind, Name};
use crate::server::Server;

/// The vhost and component of global parameters.
pub const GLOBAL: &str = "";

/// First byte of a stored value.
const VERSION: u8 = 1;

/// A parameter. Of a global one, vhost and component are [`GLOBAL`].
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub vhost: Name,
    pub component: Name,
    pub name: Name,
    pub value: Value,
}

/// All of them, by vhost, component and name.
#[derive(Debug, Default)]
pub(in crate::server) struct Parameters(BTreeMap<(Name, Name, Name), Value>);

impl Parameters {
    /// Takes a stored one back.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn recover(&mut self, key: &DefinitionKey, value: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(&key.name);
        let (component, name) = text.split_once('\0').ok_or("its key has no component")?;
        let json = match value.split_first() {
            Some((&VERSION, json)) => serde_json::from_slice(json).map_err(|error| error.to_string())?,
            _ => return Err("its record version is unknown".to_owned()),
        };
        self.0.insert((key.vhost.clone(), component.into(), name.into()), json);
        Ok(())
    }

    /// Removes those of a vhost; returns where the store keeps them.
    pub fn remove_vhost(&mut self, vhost: &str) -> Vec<DefinitionKey> {
        let mut removed = Vec::new();
        self.0.retain(|(of, component, name), _| {
            let stays = &**of != vhost;
            if !stays {
                removed.push(key(of, component, name));
            }
            stays
        });
        removed
    }
}

fn key(vhost: &str, component: &str, name: &str) -> DefinitionKey {
    let name = Bytes::from(format!("{component}\0{name}"));
    DefinitionKey { kind: DefinitionKind::Parameter, vhost: vhost.into(), name }
}

fn record(value: &Value) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(VERSION);
    out.extend_from_slice(value.to_string().as_bytes());
    out.freeze()
}

impl Server {
    /// Every parameter, global ones included, by vhost, component and name.
    pub fn parameters(&self) -> Vec<Parameter> {
        let all = self.parameters.read();
        let parameter = |((vhost, component, name), value): (&(Name, Name, Name), &Value)| Parameter {
            vhost: vhost.clone(),
            component: component.clone(),
            name: name.clone(),
            value: value.clone(),
        };
        all.0.iter().map(parameter).collect()
    }

    /// The value of one parameter.
    pub fn parameter(&self, vhost: &str, component: &str, name: &str) -> Option<Value> {
        self.parameters.read().0.get(&(vhost.into(), component.into(), name.into())).cloned()
    }

    /// Sets or replaces a parameter; a global one has [`GLOBAL`] for vhost and component.
    ///
    /// # Errors
    /// No such vhost.
    pub async fn set_parameter(&self, parameter: Parameter) -> Result<Outcome, AdminError> {
        let existed = {
            let _one_at_a_time = self.admin.lock();
            let Parameter { vhost, component, name, value } = parameter;
            if &*vhost != GLOBAL && self.directory.get(&vhost).is_none() {
                return Err(AdminError::NoVhost(vhost.to_string()));
            }
            self.keep(key(&vhost, &component, &name), record(&value));
            self.parameters.write().0.insert((vhost, component, name), value).is_some()
        };
        self.flushed().await;
        Ok(Outcome::of_existing(existed))
    }

    /// Removes a parameter.
    ///
    /// # Errors
    /// There is none.
    pub async fn clear_parameter(&self, vhost: &str, component: &str, name: &str) -> Result<(), AdminError> {
        {
            let _one_at_a_time = self.admin.lock();
            let removed = self.parameters.write().0.remove(&(vhost.into(), component.into(), name.into()));
            removed.ok_or(AdminError::Missing("parameter"))?;
            self.forget(key(vhost, component, name));
        }
        self.flushed().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_survive_their_records_and_go_with_their_vhost() {
        let mut parameters = Parameters::default();
        let value = serde_json::json!({"src-uri": ["amqp://"], "n": 1.5});
        parameters.recover(&key("v", "shovel", "s 1"), &record(&value)).unwrap();
        parameters.recover(&key(GLOBAL, GLOBAL, "cluster_name"), &record(&"c".into())).unwrap();
        assert_eq!(parameters.0[&("v".into(), "shovel".into(), "s 1".into())], value);
        assert_eq!(parameters.remove_vhost("v"), [key("v", "shovel", "s 1")]);
        assert_eq!(parameters.0.keys().next(), Some(&("".into(), "".into(), "cluster_name".into())));
        assert!(parameters.recover(&key("v", "c", "n"), b"\x02{}").is_err());
        assert!(parameters.recover(&key("v", "c", "n"), b"\x01{").is_err());
    }
}
