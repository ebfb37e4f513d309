//! What guests call themselves, for nodes that have another name than their machine. Pure.

use std::collections::BTreeMap;

/// Host names by the name of their machine.
#[derive(Debug, Default)]
pub(super) struct Hostnames {
    told: BTreeMap<String, Told>,
}

#[derive(Debug)]
struct Told {
    /// Of the instance that told it; its successor may say something else.
    uid: String,
    hostname: String,
}

impl Hostnames {
    pub(super) fn handle_answer(&mut self, machine: String, uid: String, hostname: String) {
        self.told.insert(machine, Told { uid, hostname });
    }

    pub(super) fn forget_all(&mut self) {
        self.told.clear();
    }

    pub(super) fn forget(&mut self, machine: &str) {
        self.told.remove(machine);
    }

    pub(super) fn knows(&self, machine: &str, uid: &str) -> bool {
        self.told.get(machine).is_some_and(|told| told.uid == uid)
    }

    pub(super) fn by_machine(&self) -> BTreeMap<String, String> {
        let names = self.told.iter();
        names
            .map(|(machine, told)| (machine.clone(), told.hostname.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_for_the_instance_that_gave_it() {
        let mut hostnames = Hostnames::default();
        hostnames.handle_answer("vm".to_owned(), "u1".to_owned(), "web-1".to_owned());
        assert!(hostnames.knows("vm", "u1"));
        assert!(!hostnames.knows("vm", "u2"));
        assert_eq!(hostnames.by_machine()["vm"], "web-1");
        hostnames.forget("vm");
        assert!(hostnames.by_machine().is_empty());
    }
}
