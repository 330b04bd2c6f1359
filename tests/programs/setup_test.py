#!/usr/bin/env python3
"""launch/machine, launch/setup and the Makefile's variables, without network and GPU: a machine's parts are
faked in a scratch folder where that is what is tested. Run by tests/run."""

import json
import os
import re
import shutil
import unittest
from pathlib import Path
from unittest import mock

from launch_support import PYTHON, TREE, Machine, keep_answers_of_mpicxx, run, write_script

MAKE_NAMES = ["BACKENDS", "MISSING_PACKAGES", "MISSING_BACKEND", "CUDA_HOME", "NVCC", "CUDA_ARCHS", "CHOSEN",
              "FOUND_CPPFLAGS", "FOUND_CPPFLAGS_cpu", "FOUND_CPPFLAGS_gpu", "FOUND_LDFLAGS", "FOUND_LIBS",
              "CATCH_LIBS"]
HIDDEN = {"CUDA_HOME": "/nonexistent", "DNNL_HOME": "/nonexistent"}


def setUpModule():
    keep_answers_of_mpicxx()


class MachineMake(Machine):
    def test_names_and_make_reads_them(self):
        values = self.machine_make()
        self.assertEqual(list(values), MAKE_NAMES)
        self.assertTrue(set(values["BACKENDS"].split()) <= {"cpu", "gpu"})
        (self.scratch / "machine.mk").write_text(
            run(self.launch / "machine", "make", CUDA_HOME="/a$b#c", BACKENDS="gpu").stdout)
        (self.scratch / "Makefile").write_text("include machine.mk\nall:\n\t@echo '$(CUDA_HOME)'\n")
        self.assertEqual(run("make", "-s", "-C", self.scratch, MAKEFLAGS="",
                             MAKELEVEL="").stdout, "/a$b#c\n")

    def test_what_is_found_and_what_stands_in_the_way(self):
        fewer = ["cuda_runtime.h cudart", "cublas_v2.h cublas"]
        cuda, old = (self.fake_cuda(self.scratch / name, version=version) for name, version in
                     [("cuda", 13000), ("cuda11", 11080)])
        part = self.fake_cuda(self.scratch / "part", fewer)
        cudnn = self.fake_parts(self.scratch / "cudnn", ["cudnn.h cudnn"])
        nccl = self.fake_parts(self.scratch / "nccl", ["nccl.h nccl"])
        incomplete = self.scratch / "incomplete"
        write_script(incomplete / "bin/nvcc", "")
        found = {"MISSING_BACKEND": "$"}
        for changes, expected in [
                # It goes on hiding CUDA in the recipes of make.
                (HIDDEN, {"BACKENDS": "$", "MISSING_BACKEND": ".*oneDNN.*CUDA.*make setup", "CUDA_HOME": "/nonexistent$"}),
                ({**HIDDEN, "BACKENDS": "gpu"}, {
                    "BACKENDS": "gpu$", "MISSING_BACKEND": "((?!oneDNN).)*gpu backend lacks the CUDA toolkit((?!oneDNN).)*$"}),
                ({"BACKENDS": "rocm"}, {"MISSING_BACKEND": ".*rocm"}),
                ({"BACKENDS": "gpu", "CUDA_HOME": old}, {"MISSING_BACKEND": ".*CUDA 12"}),
                # Other files than those of the backend see nothing of CUDA.
                ({"BACKENDS": "gpu", "CUDA_HOME": cuda}, {
                    **found, "NVCC": f"{cuda}/bin/nvcc$", "FOUND_CPPFLAGS_gpu": f"-isystem {cuda}/include$",
                    "FOUND_CPPFLAGS": f"((?!{cuda}).)*$", "FOUND_LDFLAGS": f"-L{cuda}/lib64 -Wl,-rpath,{cuda}/lib64$"}),
                ({"BACKENDS": "gpu", "NVCC": f"ccache {cuda}/bin/nvcc"}, {
                    "CUDA_HOME": f"{cuda}$", "NVCC": f"ccache {cuda}/bin/nvcc$"}),
                ({"BACKENDS": "gpu", "CUDA_HOME": part, "CUDNN_HOME": cudnn, "NCCL_ROOT": nccl}, {
                    **found, "FOUND_CPPFLAGS_gpu": "".join(f".*-isystem {each}/include" for each in (part, cudnn, nccl)),
                    "FOUND_LDFLAGS": "".join(f".*-Wl,-rpath,{each}/lib64" for each in (part, cudnn, nccl))})]:
            values = self.machine_make(**changes)
            for name, text in expected.items():
                self.assertRegex(values[name], f"^{text}", (name, changes))
        wheels = self.fake_cuda(self.scratch / "tree/.deps/nvidia/cu13")  # where CUDA_HOME is incomplete
        values = self.machine_make(CUDA_HOME=incomplete, BACKENDS="gpu")
        self.assertEqual((values["CUDA_HOME"], values["MISSING_BACKEND"]), (str(wheels), ""))

    def test_archs(self):
        home = self.fake_cuda(self.scratch / "cuda")

        def archs(smi, nvcc="", **changes):
            self.fake("nvidia-smi", smi)
            write_script(home / "bin/nvcc", f"printf 'compute_%s\\n' {nvcc}\n")
            values = self.machine_make(CUDA_HOME=home, **changes)
            return values["CUDA_ARCHS"], values["CHOSEN"]
        self.assertEqual(archs("printf '9.0\\n8.0\\n9.0\\n'\n"), ("80 90", ""))
        self.assertEqual(archs("printf '9.0\\n'\n"), ("90", ""))
        self.assertEqual(archs("printf '9.0\\n'\n", CUDA_ARCHS="75 86"), ("75 86", ""))
        # A login node: Volta to Blackwell, as far as nvcc can.
        none = "echo NVIDIA-SMI has failed; exit 9\n"
        for nvcc, archs_built in [("50 60 70 72 75 80 86 87 89 90", "70 80 90"),
                                  ("75 80 86 87 88 89 90 100 103 110 120 121", "75 80 90 100 120")]:
            self.assertEqual(archs(none, nvcc), (archs_built, f'no GPU is visible: building for CUDA_ARCHS="{archs_built}"'))
        self.assertEqual(archs(none, nvcc, BACKENDS="cpu")[1], "")

    def test_light_builds_what_can_run(self):
        """For make bench and make test; an explicit BACKENDS is built."""
        dnnl = self.fake_parts(self.scratch / "dnnl", ["dnnl.hpp dnnl"])
        both = {"CUDA_HOME": self.fake_cuda(self.scratch / "cuda"), "DNNL_HOME": dnnl}
        machine = (self.launch / "machine").read_text()
        self.assertIn("/dev/nvidia", machine)
        (self.launch / "machine").write_text(machine.replace("/dev/nvidia", f"{self.scratch}/nvidia"))
        for smi, changes, expected in [
                ("exit 9\n", {"LIGHT": 1}, "cpu"), ("exit 9\n", {}, "cpu gpu"), ("exit 9\n", {"LIGHT": ""}, "cpu gpu"),
                ("echo 9.0\n", {"LIGHT": 1}, "cpu gpu"), ("exit 9\n", {"LIGHT": 1, "BACKENDS": "cpu gpu"}, "cpu gpu"),
                ("exit 9\n", {"LIGHT": 1, "DNNL_HOME": "/nonexistent"}, "gpu")]:
            with self.subTest(smi=smi, changes=changes):
                self.fake("nvidia-smi", smi)
                values = self.machine_make(**{**both, **changes})
                self.assertEqual(values["BACKENDS"], expected)
                self.assertEqual("cpu backend alone" in values["CHOSEN"], expected == "cpu")
                self.assertEqual(str(both["CUDA_HOME"]) in values["FOUND_LDFLAGS"], expected != "cpu")

    def test_packages_that_are_missing_are_named(self):
        self.assertEqual(self.machine_make(BACKENDS="cpu")["MISSING_PACKAGES"], "")
        none = self.machine_make(BACKENDS="cpu", MPICXX="/nonexistent/mpicxx")["MISSING_PACKAGES"]
        self.assertRegex(none, r"^missing: MPI \(/nonexistent/mpicxx or mpirun not found[^:]*libopenmpi-dev")
        self.assertNotIn("fmt", none)
        few = self.machine_make(BACKENDS="cpu", CPPFLAGS="-nostdinc")["MISSING_PACKAGES"]
        for text in ["fmt (", "libfmt-dev", "nlohmann-json (", "libjpeg (", "libpng (", "'make setup'", "'make doctor'"]:
            self.assertIn(text, few)
        self.assertNotIn("MPI", few)

    def private_library(self, package="fmt"):
        """A library outside the system's folders, with its .pc file."""
        prefix = self.scratch / "prefix" / package
        self.fake_parts(prefix, [f"{package}.h {package}"])
        pc = prefix / "lib64/pkgconfig" / f"{package}.pc"
        pc.parent.mkdir()
        pc.write_text(f"prefix={prefix}\nName: {package}\nDescription: fake\nVersion: 99\n"
                      f"Cflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib64 -l{package}\n")
        return prefix

    @unittest.skipUnless(shutil.which("pkg-config"), "no pkg-config")
    def test_pkg_config_finds_libraries(self):
        prefix = self.private_library()
        values = self.machine_make(PKG_CONFIG_PATH=prefix / "lib64/pkgconfig", BACKENDS="cpu")
        self.assertIn(f"-isystem {prefix}/include", values["FOUND_CPPFLAGS"])
        self.assertIn(f"-L{prefix}/lib64 -Wl,-rpath,{prefix}/lib64", values["FOUND_LDFLAGS"])
        self.assertIn("-lfmt", values["FOUND_LIBS"].split())

    def test_libraries_outside_the_systems_folders_get_an_rpath(self):
        self.fake("pkg-config", "exit 1\n")
        prefix = self.private_library()
        values = self.machine_make(BACKENDS="cpu", LDFLAGS=f"-L{prefix}/lib64")
        self.assertIn(f"-Wl,-rpath,{prefix}/lib64", values["FOUND_LDFLAGS"])
        self.assertEqual(values["FOUND_LIBS"], "-lfmt -ljpeg -lpng -ldnnl")
        nccl = self.fake_parts(self.scratch / "nccl", ["nccl.h nccl"])  # a module's CPATH, LIBRARY_PATH
        home = self.fake_cuda(self.scratch / "cuda", ["cuda_runtime.h cudart", "cublas_v2.h cublas",
                                                      "cudnn.h cudnn"])
        values = self.machine_make(BACKENDS="gpu", CUDA_HOME=home, CPATH=nccl / "include",
                                   LIBRARY_PATH=nccl / "lib64")
        self.assertEqual(values["MISSING_BACKEND"], "")
        self.assertIn(f"-Wl,-rpath,{nccl}/lib64", values["FOUND_LDFLAGS"])
        self.assertNotIn("rpath", self.machine_make(BACKENDS="cpu", **HIDDEN)["FOUND_LDFLAGS"])

    def test_the_compiler_asked_for_is_the_one_that_is_probed(self):
        self.fake("ccache", f"echo \"$@\" >>{self.scratch}/compiled\nexec \"$@\"\n")
        self.assertEqual(self.machine_make(MPICXX="ccache mpicxx"), self.machine_make())
        self.assertIn("mpicxx", (self.scratch / "compiled").read_text())

    def test_a_script_that_sources_it_keeps_its_own_options(self):
        result = self.shell(f"set -u; before=$-; source {self.launch}/machine; echo $before $- $(trap -p ERR)")
        before, after = result.stdout.split()
        self.assertEqual(before, after)


class MakeVariables(Machine):
    """The Makefile of the tree, on a build folder of its own, without building."""

    def setUp(self):
        super().setUp()
        own = mock.patch.dict(os.environ)
        own.start()
        self.addCleanup(own.stop)
        for name in ("CXX", "OMPI_CXX", "MPICH_CXX", "NVCC_CCBIN"):  # the user's
            os.environ.pop(name, None)

    def make(self, *arguments):
        result = run("make", "-C", TREE, f"BUILD={self.scratch}/build", "BACKENDS=cpu",
                     f"BIN={self.scratch}/bin", "-n", "V=1", f"{self.scratch}/bin/train", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        return (next(line for line in lines if "-c training/programs/train.cpp" in line),
                next(line for line in lines if f"-o {self.scratch}/bin/train" in line))

    def test_the_users_are_added(self):
        compiled, linked = self.make()
        stamps = [(self.scratch / "build" / name).stat().st_mtime_ns for name in ["flags", "link_flags"]]
        user = ["CPPFLAGS=-I/users", "LDFLAGS=-L/users -Wl,-rpath,'$$ORIGIN'", "LDLIBS=-lusers"]
        compiled_so, linked_so = self.make(*user)
        self.assertIn("-I/users", compiled_so)
        self.assertEqual(compiled.split(), [w for w in compiled_so.split() if w != "-I/users"])
        for word in ["-L/users", "-Wl,-rpath,'$ORIGIN'", "-lusers"]:
            self.assertIn(word, linked_so.split())
        self.assertTrue(set(linked.split()) <= set(linked_so.split()))
        renewed = [(self.scratch / "build" / name).stat().st_mtime_ns for name in ["flags", "link_flags"]]
        self.assertTrue(all(old < new for old, new in zip(stamps, renewed)))
        compiled, linked = self.make(*user, "CXXFLAGS=-O3", "MPICXX=env mpicxx")
        for line in [compiled, linked]:
            self.assertIn("env mpicxx", line)
            self.assertIn("-O3", line)
            self.assertNotIn("-O2", line)

    def test_make_without_a_package_ends_at_once(self):
        result = run("make", "-C", TREE, f"BUILD={self.scratch}/build", "BACKENDS=cpu", "MPICXX=/nonexistent/mpicxx")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, "missing: MPI .*make setup.*make doctor")
        self.assertNotIn("c++", result.stdout)

    def test_another_backend_recompiles_its_own_files(self):
        """CUDA's headers are where its folders' files are compiled, and nowhere else."""
        home = self.fake_cuda(self.scratch / "cuda")
        build, folder = self.scratch / "build", f"-isystem {home}/include"
        def commands(backends):
            result = run("make", "-C", TREE, f"BUILD={build}", f"BIN={self.scratch}/bin", f"BACKENDS={backends}", "-n",
                         "V=1", "tests", CUDA_HOME=home, CUDA_ARCHS="90")
            self.assertEqual(result.returncode, 0, result.stderr)
            stamps = [(build / name).stat().st_mtime_ns for name in ["flags", "cpu_flags"]]
            compiled = [line.split() for line in result.stdout.splitlines() if " -c " in line]
            return stamps, {words[words.index("-c") + 1]: words for words in compiled}
        (stamps, alone), (stamps_both, both) = commands("cpu"), commands("cpu gpu")
        self.assertEqual(stamps, stamps_both)
        self.assertEqual({name for name in both if folder in " ".join(both[name])}, {name for name in both if "/gpu/" in name})
        self.assertEqual({name for name in alone if "/gpu/" in name}, set())
        for name in alone.keys() & both.keys():
            self.assertEqual(alone[name], both[name])

    def test_bench_builds_what_it_runs(self):
        result = run("make", "-C", TREE, f"BUILD={self.scratch}/build", f"BIN={self.scratch}/bin", "BACKENDS=cpu", "-n",
                     "run-bench")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(re.findall(f"-o {self.scratch}/bin/(\\w+)", result.stdout), ["train", "compare"])
        self.assertNotIn("launch/node", result.stdout)
        self.assertIn("\nlaunch/bench", result.stdout)

    def test_cxx_is_what_mpicxx_calls(self):
        (self.scratch / "show.mk").write_text("include Makefile\nshow:\n\t@echo \"$$OMPI_CXX $(ccbin)\"\n")
        shown = ["make", "-s", "-C", TREE, "-f", self.scratch / "show.mk", "show", "NEEDS_NOTHING=show"]
        self.assertEqual(run(*shown).stdout.strip(), "")
        self.assertEqual(run(*shown, CXX="ccache g++").stdout.strip(), "ccache g++ -ccbin=g++")
        self.assertEqual(run(*shown, CXX="g++", OMPI_CXX="clang++", NVCC_CCBIN="g++-12").stdout.strip(),
                         "clang++ -ccbin=g++-12")

    def test_goals_that_build_nothing_look_at_nothing(self):
        build = self.scratch / "build"
        for name in ["mpicxx", "nvcc", "nvidia-smi", "g++"]:
            self.fake(name, f"touch {self.scratch}/probed\n")
        for goal in ["help", "clean", "uninstall"]:
            result = run("make", "-C", TREE, f"BUILD={build}", f"BIN={self.scratch}/bin",
                         f"PREFIX={self.scratch}/none", goal, PATH=self.path)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertFalse(build.exists() or (self.scratch / "probed").exists())

    def test_compile_commands(self):
        run("make", "-C", TREE, f"BUILD={self.scratch}/build", "BACKENDS=cpu", "compile_commands.json",
            "CPPFLAGS=-DTEXT='\"a\\b\"'")
        path = TREE / "compile_commands.json"
        self.addCleanup(path.unlink)
        commands = {entry["file"]: entry["command"] for entry in json.loads(path.read_text())}
        self.assertIn("-DTEXT='\"a\\b\"'", commands["training/programs/train.cpp"])
        self.assertTrue(all((TREE / name).exists() for name in commands))

    def test_check_needs_no_git_and_no_backend(self):
        tree = self.scratch / "archive"
        shutil.copytree(TREE, tree, ignore=lambda folder, names: {
            name for name in names if name in {"build", "bin", ".git", ".deps", "runs", "0.1", "shared"}})
        self.fake("clang-format", f"echo \"$@\" >{self.scratch}/formatted\n")
        self.fake("shellcheck", "")  # which takes seconds, and checks these files elsewhere
        result = run("make", "-C", tree, "check", PATH=self.path, **HIDDEN)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertNotIn("fatal", result.stderr)
        formatted = (self.scratch / "formatted").read_text().split()
        self.assertIn("common/error.hpp", formatted)


class Doctor(Machine):
    def setUp(self):
        super().setUp()
        self.fake("python3", PYTHON)  # the real one needs a second for what it reports of its modules

    def doctor(self, **changes):
        result = run(self.launch / "machine", "doctor", **{"PATH": self.path, **changes})
        for line in result.stdout.splitlines():
            self.assertRegex(line, "^[✓✗] ")
        return result

    def test_agrees_with_make(self):
        (self.fakes / "python3").unlink()
        result = self.doctor()
        able = self.machine_make()["BACKENDS"] != ""
        self.assertEqual(result.returncode, 0 if able else 2, result.stdout)
        self.assertRegex(result.stdout, r"✓ fmt +\d+\.\d+")

    def test_nothing_can_be_built(self):
        result = self.doctor(**HIDDEN)
        self.assertEqual((result.returncode, self.doctor(BACKENDS="gpu", **HIDDEN).returncode), (2, 2))
        plain = run(self.launch / "machine", "doctor", PATH=self.path, LC_ALL="C", **HIDDEN)
        self.assertEqual(plain.stdout, result.stdout.replace("✓", "+").replace("✗", "-"))
        for line in ("oneDNN ", "the cpu backend cannot be built: missing oneDNN", "the gpu backend cannot be built: missing CUDA"):
            self.assertIn(f"✗ {line}", result.stdout)
        self.assertNotIn("module load", result.stdout)
        self.fake("mpirun", "echo HYDRA build details:\n")
        result = self.doctor()
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stdout, r"✗ MPI +mpirun is of MPICH \(\S+\), and mpicxx of Open MPI")

    def test_versions_that_are_not_tested_are_named(self):
        self.fake("mpirun", "echo 'mpirun (Open MPI) 6.1.0'\n")
        remark = "not tested with this version (tested: 4.1.4, 4.1.6, 5.0.7, 5.0.11)"
        line = next(line for line in self.doctor().stdout.splitlines() if "✓ MPI" in line)
        self.assertRegex(line, rf"6\.1\.0 .*; {re.escape(remark)}")
        for version, untested in [("4.1.4", False), ("4.1.9", False), ("4.10.1", True), ("", False)]:
            said = self.shell(f"source {self.launch}/machine; source {self.launch}/requirements; if_untested 'Open MPI' '{version}'").stdout
            self.assertEqual(said, f"; {remark}\n" if untested else "", version)
        self.assertEqual(self.shell(f"source {self.launch}/machine; source {self.launch}/requirements; if_untested libpng 1.0").stdout, "")

    def test_modules_that_exist_are_named(self):
        modules = self.scratch / "modules"
        for name in ["oneDNN/2.9.lua", "oneDNN/2.10.lua", "cuDNN/9.1-CUDA-12.4", ".hidden/onednn"]:
            (modules / name).parent.mkdir(parents=True, exist_ok=True)
            (modules / name).touch()
        said = self.doctor(MODULEPATH=f"/nonexistent:{modules}", **HIDDEN).stdout
        self.assertRegex(said, "✗ oneDNN .*; module load oneDNN/2.10\\b")
        self.assertRegex(said, "✗ cuDNN .*; module load cuDNN/9.1-CUDA-12.4, or set CUDNN_HOME")
        self.assertRegex(said, "✗ CUDA .*; set CUDA_HOME, or")  # cuDNN's module is no module of CUDA

    def test_plots_may_be_drawn_by_the_distributions_python(self):
        self.fake("python3", "[[ $* != *matplotlib* ]] || exit 1\nexec true\n")
        write_script(self.scratch / "python", "echo 3.6 here\n")
        machine = (self.launch / "machine").read_text()
        self.assertIn("=/usr/bin/python3\n", machine)
        (self.launch / "machine").write_text(
            machine.replace("=/usr/bin/python3\n", f"={self.scratch}/python\n"))
        self.assertRegex(self.doctor().stdout, r"✓ matplotlib +3\.6 here")
        write_script(self.scratch / "python", "exit 1\n")
        self.assertRegex(self.doctor().stdout, rf"✗ matplotlib +not found for {self.scratch}/python .*python3-matplotlib")


class Setup(Machine):
    def setUp(self):
        super().setUp()
        self.fake("apt-get", f"echo \"$@\" >>{self.scratch}/apt; echo 'E: no network'; exit 100\n")
        self.fake("sudo", "exec \"${@:2}\"\n")  # sudo -n COMMAND
        self.fake("python3", PYTHON)

    def setup(self, **changes):
        return run(self.launch / "setup", PATH=self.path, **changes)

    def test_required_package_cannot_be_had(self):
        result = self.setup(BACKENDS="cpu", **HIDDEN)
        self.assertEqual(result.returncode, 2)
        self.assertIn("missing: oneDNN", result.stdout)
        self.assertIn("E: no network", result.stdout)
        self.assertIn("libdnnl-dev", (self.scratch / "apt").read_text())

    def test_optional_package_is_tried_once(self):
        home = self.fake_cuda(self.scratch / "cuda")
        self.fake("python3", "[[ $* != *jsonschema* ]] || exit 1\n" + PYTHON)
        places = {"BACKENDS": "gpu", "CUDA_HOME": home}
        result = self.setup(**places)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("continuing without", result.stdout)
        self.assertIn("jsonschema", result.stdout)
        (self.scratch / "apt").unlink()
        result = self.setup(**places)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(len(result.stdout.splitlines()), 1, result.stdout)
        self.assertFalse((self.scratch / "apt").exists())

    def test_without_apt_real_modules_are_named(self):
        (self.fakes / "apt-get").unlink()
        # A PATH without the system's apt-get: links to what is needed.
        tools = self.scratch / "tools"
        tools.mkdir()
        for folder in ["/usr/bin", "/bin"]:
            for tool in Path(folder).iterdir():
                if not tool.name.startswith("apt") and not (tools / tool.name).exists():
                    (tools / tool.name).symlink_to(tool)
        module = self.scratch / "modules/onednn/3.1"
        module.parent.mkdir(parents=True)
        module.touch()
        places = {"PATH": f"{self.fakes}:{tools}", "BACKENDS": "cpu", **HIDDEN}
        said = run(self.launch / "setup", MODULEPATH=self.scratch / "modules", **places)
        self.assertEqual(said.returncode, 2)
        self.assertRegex(said.stdout, r"missing: oneDNN \(not found[^;]*; module load onednn/3\.1\)")

    def test_a_login_node_with_cuda_needs_no_onednn(self):
        home = self.fake_cuda(self.scratch / "cuda")
        result = self.setup(CUDA_HOME=home, DNNL_HOME="/nonexistent", CUDA_ARCHS="90")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("without oneDNN (only the gpu backend is built)", result.stdout)
        result = self.setup(**HIDDEN)
        self.assertEqual(result.returncode, 2)
        self.assertIn("BACKENDS=gpu", result.stdout)

    def test_no_index(self):
        self.fake("python3", "[[ $* != '-m pip download'* ]] || exit 1\n" + PYTHON)
        self.fake("nvidia-smi", "exit 9\n")
        result = self.setup(BACKENDS="gpu", **HIDDEN)
        self.assertEqual(result.returncode, 2)
        self.assertIn("wheels could not be installed", result.stdout)
        self.assertFalse((self.scratch / "tree" / ".deps" / "partial").exists())

    def test_wheels(self):
        # What the wheels unpack to: three folders, versioned libraries only.
        self.fake("python3", """
case "$*" in
  '-m pip --version' | '-m pip download'*) exit 0 ;;
  '-m pip install'*)
    while [[ $1 != --target ]]; do shift; done
    cd "$2"; mkdir -p nvidia/{cu13,cudnn,nccl}/{include,lib} nvidia/cu13/bin
    touch nvidia/cu13/include/{cuda_runtime,cublas_v2}.h nvidia/cudnn/include/cudnn.h
    touch nvidia/nccl/include/nccl.h nvidia/cu13/lib/lib{cudart,cublas}.so.13
    touch nvidia/cudnn/lib/libcudnn.so.9 nvidia/nccl/lib/libnccl.so.2
    printf '#!/bin/bash\\necho V13.0.88\\n' >nvidia/cu13/bin/nvcc; chmod +x nvidia/cu13/bin/nvcc
    exit 0 ;;
esac
""" + PYTHON)
        self.fake("nvidia-smi", "exit 9\n")
        result = self.setup(BACKENDS="gpu", **HIDDEN)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        deps = self.scratch / "tree" / ".deps"
        library = deps / "nvidia" / "cu13" / "lib64" / "libcudnn.so"
        self.assertEqual(os.readlink(library), "libcudnn.so.9")
        values = self.machine_make(BACKENDS="gpu", **HIDDEN)
        self.assertEqual((values["CUDA_HOME"], values["MISSING_BACKEND"]),
                         (str(deps / "nvidia" / "cu13"), ""))
        self.assertNotIn("downloading", self.setup(BACKENDS="gpu", **HIDDEN).stdout)


if __name__ == "__main__":
    unittest.main()
