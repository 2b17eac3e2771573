//! Requests: from the HTTP request to what it asks for. Anything that the server does not implement is an error that
//! names the request.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use serde_json::Value;

use super::{
    deletion::DeleteOptions,
    failure::{Failure, Unserved},
    faults::{RequestInfo, Verb},
    kinds::Kind,
    patch::Patch,
    selector::Selector,
};

/// A request that the server implements.
#[derive(Clone)]
pub struct Request {
    pub info: RequestInfo,
    pub action: Action,
}

#[derive(Clone)]
pub enum Action {
    Get { view: View, freshness: Freshness },
    List(List),
    Watch(Watch),
    Create(Value),
    Update(Value),
    Patch(Patch),
    Delete(DeleteOptions),
}

/// What of an object is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Whole,
    Metadata,
}

/// How fresh a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// At least as fresh as the store when the request arrives.
    Quorum,
    /// What the watch cache has (`resourceVersion=0`).
    Cache,
}

#[derive(Clone)]
pub struct List {
    pub selector: Selector,
    pub view: View,
    pub freshness: Freshness,
    pub limit: Option<usize>,
    pub from: Option<Continue>,
}

/// Where a list in pages continues: after this object, at this revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    pub revision: u64,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone)]
pub struct Watch {
    pub selector: Selector,
    pub view: View,
    pub after: u64,
    pub timeout: Option<Duration>,
    pub bookmarks: bool,
}

impl Continue {
    pub fn token(&self) -> String {
        format!("{}/{}/{}", self.revision, self.namespace, self.name)
    }

    fn parse(token: &str) -> Option<Self> {
        let mut parts = token.splitn(3, '/');
        let revision = parts.next()?.parse().ok()?;
        Some(Self { revision, namespace: parts.next()?.to_owned(), name: parts.next()?.to_owned() })
    }
}

/// The parameters of a request; each may be taken once, and none may be left.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        };
        Self(pairs.map(pair).collect())
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let index = self.0.iter().position(|(found, _)| found == name)?;
        Some(self.0.remove(index).1).filter(|value| !value.is_empty())
    }

    fn take_flag(&mut self, name: &str) -> bool {
        self.take(name).is_some_and(|value| value == "true" || value == "1")
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.filter(|_| first == b'%').and_then(|text| u8::from_str_radix(text, 16).ok());
        bytes.push(escaped.unwrap_or(if first == b'+' { b' ' } else { first }));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Where a path leads.
struct Place {
    kind: Kind,
    namespace: String,
    name: String,
    is_status: bool,
}

impl Place {
    fn of(path: &str) -> Option<Self> {
        let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version) = match *parts.first()? {
            "api" if parts.len() > 2 => ("", parts[1]),
            "apis" if parts.len() > 3 => (parts.remove(1), parts[1]),
            _ => return None,
        };
        let mut rest = &parts[2..];
        let mut namespace = "";
        if let ["namespaces", name, inner @ ..] = rest
            && !inner.is_empty()
            && *inner != ["status"]
        {
            (namespace, rest) = (name, inner);
        }
        let (plural, name, is_status) = match rest {
            [plural] => (plural, "", false),
            [plural, name] => (plural, *name, false),
            [plural, name, "status"] => (plural, *name, true),
            _ => return None,
        };
        let kind = Kind::served(group, version, plural)?;
        let traits = kind.traits();
        let fits = traits.namespaced || namespace.is_empty();
        let is_possible = !is_status || traits.status;
        (fits && is_possible).then(|| Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            is_status,
        })
    }
}

/// What the request asks for.
pub fn parse(
    parts: &http::request::Parts,
    body: &Bytes,
    client: &str,
    number: u64,
) -> Result<Request, Unserved> {
    let Place { kind, namespace, name, is_status } =
        Place::of(parts.uri.path()).ok_or(Unserved::Unsupported)?;
    let mut parameters = Parameters::parse(parts.uri.query().unwrap_or_default());
    let (is_one, is_scoped) = (!name.is_empty(), namespace.is_empty() != kind.traits().namespaced);
    let action = match parts.method {
        Method::GET if is_one && is_scoped && !is_status => {
            Action::Get { view: view(parts)?, freshness: freshness(&mut parameters)? }
        }
        Method::GET if !is_one && parameters.take_flag("watch") => {
            Action::Watch(watch(&mut parameters, view(parts)?)?)
        }
        Method::GET if !is_one => Action::List(list(&mut parameters, view(parts)?)?),
        Method::POST if !is_one && is_scoped => Action::Create(object(body)?),
        Method::PUT if is_one && is_scoped => Action::Update(object(body)?),
        Method::PATCH if is_one && is_scoped => Action::Patch(patch(parts, body)?),
        Method::DELETE if is_one && is_scoped && !is_status => Action::Delete(DeleteOptions::default()),
        _ => return Err(Unserved::Unsupported),
    };
    let mut info = RequestInfo {
        client: client.to_owned(),
        number,
        verb: verb(&action),
        kind,
        namespace,
        name,
        is_status,
        dry_run: false,
    };
    let action = match action {
        Action::Create(value) => {
            // The path does not name it. The real server takes the name for its hooks from the object, too.
            value["metadata"]["name"].as_str().unwrap_or_default().clone_into(&mut info.name);
            Action::Create(value)
        }
        Action::Delete(_) => {
            let (options, dry_run) = delete_options(body)?;
            info.dry_run = dry_run;
            Action::Delete(options)
        }
        action => action,
    };
    if info.verb.writes() {
        parameters.take("fieldManager");
        info.dry_run |= match parameters.take("dryRun").as_deref() {
            None => false,
            Some("All") => true,
            Some(_) => return Err(Unserved::Unsupported),
        };
    }
    if parameters.0.is_empty() { Ok(Request { info, action }) } else { Err(Unserved::Unsupported) }
}

/// The request, in words.
pub fn described(parts: &http::request::Parts) -> String {
    let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (accept, content) = (header(header::ACCEPT), header(header::CONTENT_TYPE));
    format!("{} {} (accept {accept:?}, content type {content:?})", parts.method, parts.uri)
}

fn verb(action: &Action) -> Verb {
    match action {
        Action::Get { .. } => Verb::Get,
        Action::List(_) => Verb::List,
        Action::Watch(_) => Verb::Watch,
        Action::Create(_) => Verb::Create,
        Action::Update(_) => Verb::Update,
        Action::Patch(_) => Verb::Patch,
        Action::Delete(_) => Verb::Delete,
    }
}

fn view(parts: &http::request::Parts) -> Result<View, Unserved> {
    let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    match accept {
        None | Some("*/*" | "application/json") => Ok(View::Whole),
        Some(accept) if accept.contains("as=PartialObjectMetadata") => Ok(View::Metadata),
        Some(_) => Err(Unserved::Unsupported),
    }
}

fn freshness(parameters: &mut Parameters) -> Result<Freshness, Unserved> {
    let version = parameters.take("resourceVersion");
    let matching = parameters.take("resourceVersionMatch");
    match (version.as_deref(), matching.as_deref()) {
        (None, None) => Ok(Freshness::Quorum),
        (Some("0"), None | Some("NotOlderThan")) => Ok(Freshness::Cache),
        _ => Err(Unserved::Unsupported),
    }
}

fn selector(parameters: &mut Parameters) -> Result<Selector, Unserved> {
    let labels = parameters.take("labelSelector").unwrap_or_default();
    let fields = parameters.take("fieldSelector").unwrap_or_default();
    Selector::parse(&labels, &fields)
}

fn number<T: std::str::FromStr>(parameters: &mut Parameters, name: &str) -> Result<Option<T>, Unserved> {
    let text = parameters.take(name);
    text.map(|text| text.parse().map_err(|_| Unserved::Unsupported)).transpose()
}

fn list(parameters: &mut Parameters, view: View) -> Result<List, Unserved> {
    let limit = number(parameters, "limit")?.filter(|limit| *limit > 0);
    let from = parameters.take("continue");
    let from = from.map(|token| Continue::parse(&token).ok_or(Unserved::Unsupported)).transpose()?;
    let freshness = freshness(parameters)?;
    Ok(List { selector: selector(parameters)?, view, freshness, limit, from })
}

fn watch(parameters: &mut Parameters, view: View) -> Result<Watch, Unserved> {
    // Watches that begin with the objects that exist are not needed: the operator lists first.
    let after = number(parameters, "resourceVersion")?.filter(|version| *version > 0);
    let after = after.ok_or(Unserved::Unsupported)?;
    let timeout = number(parameters, "timeoutSeconds")?.map(Duration::from_secs);
    let bookmarks = parameters.take_flag("allowWatchBookmarks");
    Ok(Watch { selector: selector(parameters)?, view, after, timeout, bookmarks })
}

fn object(body: &Bytes) -> Result<Value, Failure> {
    let value: Result<Value, _> = serde_json::from_slice(body);
    match value {
        Ok(value) if value.is_object() => Ok(value),
        Ok(_) => Err(Failure::bad_request("the body of the request is no object")),
        Err(error) => {
            Err(Failure::bad_request(&format!("the body of the request cannot be decoded: {error}")))
        }
    }
}

fn patch(parts: &http::request::Parts, body: &Bytes) -> Result<Patch, Unserved> {
    match parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) {
        Some("application/json-patch+json") => Patch::json(body),
        Some("application/merge-patch+json") => Ok(Patch::merge(body)?),
        _ => Err(Unserved::Unsupported),
    }
}

fn delete_options(body: &Bytes) -> Result<(DeleteOptions, bool), Unserved> {
    let body = if body.is_empty() { Value::Null } else { object(body)? };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    for (name, value) in body.as_object().into_iter().flatten() {
        let is_known = match name.as_str() {
            "apiVersion" | "kind" | "gracePeriodSeconds" | "preconditions" => true,
            "propagationPolicy" => value == "Background",
            "dryRun" => value.as_array().is_some_and(|values| values.iter().all(|value| value == "All")),
            _ => false,
        };
        if !is_known && !value.is_null() {
            return Err(Unserved::Unsupported);
        }
    }
    let options = DeleteOptions {
        grace_seconds: body["gracePeriodSeconds"].as_i64(),
        uid: text(&body["preconditions"]["uid"]),
        version: text(&body["preconditions"]["resourceVersion"]),
    };
    let dry_run = body["dryRun"].as_array().is_some_and(|values| !values.is_empty());
    Ok((options, dry_run))
}
