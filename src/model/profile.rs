//! Which RabbitMQ version we behave like where versions differ: one table of all the differences.

/// A RabbitMQ version whose behaviour can be chosen with `--compat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    V3_13,
    V4_0,
    V4_1,
    #[default]
    V4_2,
    V4_3,
}

impl Profile {
    pub const ALL: [Self; 5] = [Self::V3_13, Self::V4_0, Self::V4_1, Self::V4_2, Self::V4_3];

    /// Reads `3.13`, `4.0` … as on the command line.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V3_13 => "3.13",
            Self::V4_0 => "4.0",
            Self::V4_1 => "4.1",
            Self::V4_2 => "4.2",
            Self::V4_3 => "4.3",
        }
    }

    /// `version` in server-properties: clients parse it (kombu decides on global qos by it).
    pub fn server_version(self) -> &'static str {
        match self {
            Self::V3_13 => "3.13.7",
            Self::V4_0 => "4.0.9",
            Self::V4_1 => "4.1.8",
            Self::V4_2 => "4.2.6",
            Self::V4_3 => "4.3.6",
        }
    }
}
