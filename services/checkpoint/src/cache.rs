//! Unpacks the built-in model into a cache directory.

use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::{CheckpointError, embedded::Model};

/// Write bits of a mode.
const GROUP: u32 = 0o020;
const OTHERS: u32 = 0o002;

/// The variables and places that decide where the cache is.
pub(crate) struct Environment {
    pub(crate) deltagate_cache_dir: Option<PathBuf>,
    pub(crate) xdg_cache_home: Option<PathBuf>,
    pub(crate) home: Option<PathBuf>,
    pub(crate) temporary: PathBuf,
}

impl Environment {
    pub(crate) fn of_process() -> Self {
        let variable = |name| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            deltagate_cache_dir: variable("DELTAGATE_CACHE_DIR"),
            xdg_cache_home: variable("XDG_CACHE_HOME"),
            home: variable("HOME"),
            temporary: env::temp_dir(),
        }
    }

    /// Directories for models, to try in this order. One that the operator named is the only one: it must not be passed over silently.
    fn places(&self) -> Vec<PathBuf> {
        if let Some(dir) = &self.deltagate_cache_dir {
            return vec![models_in(dir)];
        }
        // The XDG rules say that relative paths are to be ignored.
        let xdg = self
            .xdg_cache_home
            .as_ref()
            .filter(|dir| dir.is_absolute())
            .cloned();
        let home = self
            .home
            .as_ref()
            .filter(|dir| dir.is_absolute())
            .map(|home| home.join(".cache"));
        let cache = xdg.or(home).map(|dir| models_in(&dir.join("deltagate")));
        // One level only: whoever owns a directory in between could exchange what is below.
        cache
            .into_iter()
            .chain([self.temporary.join("deltagate-models")])
            .collect()
    }
}

/// Where the models are in a cache directory.
pub(crate) fn models_in(cache: &Path) -> PathBuf {
    cache.join("models")
}

/// Unpacks in the first directory of the environment that allows it; the error is the last one's.
pub(crate) fn unpack_by_default(
    model: &Model<'_>,
    environment: &Environment,
) -> Result<PathBuf, CheckpointError> {
    let mut last = CheckpointError::NotEmbedded;
    for models in environment.places() {
        match unpack(model, &models) {
            Err(error @ CheckpointError::Cache { .. }) => last = error,
            done => return done,
        }
    }
    Err(last)
}

/// Unpacks under a directory, unless it is there already, and gives the folder. Its files have been compared with the built-in ones.
pub(crate) fn unpack(model: &Model<'_>, models: &Path) -> Result<PathBuf, CheckpointError> {
    let home = models.join(model.digest());
    let folder = home.join(model.name);
    prepare(models).map_err(|source| CheckpointError::Cache {
        path: models.to_owned(),
        source,
    })?;
    let cache = |source| CheckpointError::Cache {
        path: folder.clone(),
        source,
    };
    // Others may unpack or repair at the same time; whoever renames first wins, and the rest compare.
    for _ in 0..3 {
        match first_difference(model, models, &home).map_err(cache)? {
            None => return Ok(folder),
            Some(_) => write_anew(model, models, &home).map_err(cache)?,
        }
    }
    match first_difference(model, models, &home).map_err(cache)? {
        None => Ok(folder),
        Some(file) => Err(CheckpointError::CacheDamaged { path: folder, file }),
    }
}

/// Makes the directory if need be; one in which anybody could exchange a folder is not used.
fn prepare(models: &Path) -> io::Result<()> {
    create_private(models)?;
    if is_trusted(models, &fs::metadata(models)?, OTHERS)? {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to another user, or anybody may write to it",
        ))
    }
}

/// Writes the folder aside and renames it into place. A bad one is taken away; a process that has it mapped keeps it.
fn write_anew(model: &Model<'_>, models: &Path, home: &Path) -> io::Result<()> {
    // Private from its creation on.
    let aside = tempfile::Builder::new().prefix(".unpack-").tempdir_in(models)?;
    let new = aside.path().join("new");
    let folder = new.join(model.name);
    create_private(&folder)?;
    for file in model.files {
        let mut to = create_private_file(&folder.join(file.name))?;
        to.write_all(file.bytes)?;
        to.sync_all()?;
    }
    // Renaming does not replace a folder that has files in it. Only a bad one is moved away: others may be opening a good one.
    if fs::rename(&new, home).is_ok() || first_difference(model, models, home)?.is_none() {
        return Ok(());
    }
    fs::rename(home, aside.path().join("old"))?;
    match fs::rename(&new, home) {
        // Somebody else was faster.
        Err(_) if home.is_dir() => Ok(()),
        result => result,
    }
}

/// The first thing that is not as in the build: a file that is missing, other, or too many; or a folder that others may write to.
fn first_difference(model: &Model<'_>, models: &Path, home: &Path) -> io::Result<Option<String>> {
    let folder = home.join(model.name);
    for dir in [home, &folder] {
        match fs::symlink_metadata(dir) {
            Ok(metadata) if metadata.is_dir() && is_trusted(models, &metadata, GROUP | OTHERS)? => {}
            Ok(_) => return Ok(Some(".".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(".".to_owned())),
            Err(error) => return Err(error),
        }
    }
    for entry in fs::read_dir(&folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !model.files.iter().any(|file| file.name == name) {
            return Ok(Some(name));
        }
    }
    for file in model.files {
        if !is_same(models, &folder.join(file.name), file.bytes)? {
            return Ok(Some(file.name.to_owned()));
        }
    }
    Ok(None)
}

fn is_same(models: &Path, path: &Path, bytes: &[u8]) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(metadata)
            if metadata.is_file()
                && metadata.len() == bytes.len() as u64
                && is_trusted(models, &metadata, GROUP | OTHERS)? => {}
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize() == Sha256::digest(bytes))
}

#[cfg(unix)]
fn create_private(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(unix)]
fn create_private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Whether it belongs to this user or to root, and none of these others may write to it. On a shared machine a stranger could have put a
/// folder there, and could change it after it was compared.
#[cfg(unix)]
fn is_trusted(near: &Path, metadata: &fs::Metadata, writers: u32) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    if metadata.mode() & writers != 0 {
        return Ok(false);
    }
    // Who this process is shows in a file that it makes.
    Ok(metadata.uid() == 0 || metadata.uid() == tempfile::tempfile_in(near)?.metadata()?.uid())
}

#[cfg(not(unix))]
fn create_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(dir)
}

#[cfg(not(unix))]
fn create_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(not(unix))]
fn is_trusted(_near: &Path, _metadata: &fs::Metadata, _writers: u32) -> io::Result<bool> {
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::embedded::EmbeddedFile;
    use tempfile::TempDir;

    const FILES: &[EmbeddedFile] = &[
        EmbeddedFile {
            name: "a.json",
            bytes: b"{}",
        },
        EmbeddedFile {
            name: "b.bin",
            bytes: b"0123",
        },
    ];
    const MODEL: Model<'_> = Model {
        name: "mini",
        files: FILES,
    };

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn unpacks_once_under_its_digest() {
        let cache = TempDir::new().unwrap();
        let folder = unpack(&MODEL, &models_in(cache.path())).unwrap();
        assert_eq!(
            folder,
            cache.path().join("models").join(MODEL.digest()).join("mini")
        );
        assert_eq!(names(&folder), ["a.json", "b.bin"]);
        assert_eq!(fs::read(folder.join("b.bin")).unwrap(), b"0123");
        let written = fs::metadata(folder.join("b.bin")).unwrap().modified().unwrap();
        assert_eq!(unpack(&MODEL, &models_in(cache.path())).unwrap(), folder);
        assert_eq!(
            fs::metadata(folder.join("b.bin")).unwrap().modified().unwrap(),
            written,
            "written again"
        );
        assert_eq!(
            names(&models_in(cache.path())),
            [MODEL.digest()],
            "nothing else is left behind"
        );
    }

    #[test]
    fn other_bytes_get_another_folder() {
        let other = [
            FILES[0],
            EmbeddedFile {
                name: "b.bin",
                bytes: b"0124",
            },
        ];
        let moved = [
            EmbeddedFile {
                name: "a.jso",
                bytes: b"n{}",
            },
            FILES[1],
        ];
        assert_ne!(
            Model {
                name: "mini",
                files: &other
            }
            .digest(),
            MODEL.digest()
        );
        assert_ne!(
            Model {
                name: "mini",
                files: &moved
            }
            .digest(),
            MODEL.digest()
        );
    }

    #[test]
    fn damaged_missing_and_additional_files_are_healed() {
        let cache = TempDir::new().unwrap();
        let models = models_in(cache.path());
        let folder = unpack(&MODEL, &models).unwrap();
        let damages: [&dyn Fn(); 5] = [
            &|| fs::write(folder.join("b.bin"), b"0129").unwrap(),
            &|| fs::remove_file(folder.join("a.json")).unwrap(),
            &|| fs::write(folder.join("decider_config.json"), b"{}").unwrap(),
            &|| fs::remove_dir_all(folder.parent().unwrap()).unwrap(),
            &|| {
                fs::remove_file(folder.join("b.bin")).unwrap();
                fs::create_dir(folder.join("b.bin")).unwrap();
            },
        ];
        for damage in damages {
            damage();
            assert_eq!(unpack(&MODEL, &models).unwrap(), folder);
            assert_eq!(names(&folder), ["a.json", "b.bin"]);
            assert_eq!(fs::read(folder.join("b.bin")).unwrap(), b"0123");
        }
        assert_eq!(names(&models), [MODEL.digest()]);
    }

    #[cfg(unix)]
    #[test]
    fn nobody_else_may_write() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let cache = TempDir::new().unwrap();
        let models = models_in(cache.path());
        let folder = unpack(&MODEL, &models).unwrap();
        for dir in [&models, folder.parent().unwrap(), &folder] {
            assert_eq!(mode(dir), 0o700, "{}", dir.display());
        }
        assert_eq!(mode(&folder.join("a.json")), 0o600);

        fs::set_permissions(folder.join("a.json"), fs::Permissions::from_mode(0o666)).unwrap();
        unpack(&MODEL, &models).unwrap();
        assert_eq!(mode(&folder.join("a.json")), 0o600);

        // The right bytes behind a link could be others the next moment.
        let elsewhere = cache.path().join("elsewhere");
        fs::rename(folder.join("b.bin"), &elsewhere).unwrap();
        symlink(&elsewhere, folder.join("b.bin")).unwrap();
        unpack(&MODEL, &models).unwrap();
        assert!(!fs::symlink_metadata(folder.join("b.bin")).unwrap().is_symlink());

        fs::set_permissions(&models, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(
            matches!(unpack(&MODEL, &models).unwrap_err(), CheckpointError::Cache { path, .. } if path == models)
        );
    }

    #[test]
    fn several_at_the_same_time_end_with_one_folder() {
        let cache = TempDir::new().unwrap();
        let models = models_in(cache.path());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..8).map(|_| scope.spawn(|| unpack(&MODEL, &models))).collect();
            for worker in workers {
                let folder = worker.join().unwrap().unwrap();
                assert_eq!(fs::read(folder.join("b.bin")).unwrap(), b"0123");
            }
        });
        assert_eq!(names(&models), [MODEL.digest()]);
    }

    #[test]
    fn the_environment_decides_where() {
        let environment = |own: Option<&str>, xdg: Option<&str>, home: Option<&str>| Environment {
            deltagate_cache_dir: own.map(PathBuf::from),
            xdg_cache_home: xdg.map(PathBuf::from),
            home: home.map(PathBuf::from),
            temporary: PathBuf::from("/tmp"),
        };
        let places = |own, xdg, home| -> Vec<String> {
            environment(own, xdg, home)
                .places()
                .iter()
                .map(|place| place.display().to_string())
                .collect()
        };
        assert_eq!(places(Some("/c"), Some("/x"), Some("/h")), ["/c/models"]);
        assert_eq!(
            places(None, Some("/x"), Some("/h")),
            ["/x/deltagate/models", "/tmp/deltagate-models"]
        );
        assert_eq!(
            places(None, Some("x"), Some("/h")),
            ["/h/.cache/deltagate/models", "/tmp/deltagate-models"]
        );
        assert_eq!(places(None, None, Some("h")), ["/tmp/deltagate-models"]);
    }

    #[test]
    fn a_default_that_cannot_be_used_gives_way_and_a_named_one_does_not() {
        let base = TempDir::new().unwrap();
        let blocked = base.path().join("file");
        fs::write(&blocked, b"").unwrap();
        let mut environment = Environment {
            deltagate_cache_dir: None,
            xdg_cache_home: Some(blocked.clone()),
            home: None,
            temporary: base.path().to_owned(),
        };
        let folder = unpack_by_default(&MODEL, &environment).unwrap();
        assert!(
            folder.starts_with(base.path().join("deltagate-models")),
            "{}",
            folder.display()
        );
        environment.deltagate_cache_dir = Some(blocked);
        let error = unpack_by_default(&MODEL, &environment).unwrap_err();
        assert!(matches!(error, CheckpointError::Cache { .. }), "{error}");
    }
}
