# A Spack recipe. In a repository of the site's own:
#   packages/shakedown/package.py      this file
#   shakedown-0.2.0.tar.gz             of `make dist`, where url finds it; `spack checksum shakedown` prints its line
# Builds a development checkout too: spack dev-build shakedown@main
from spack.package import *


class Shakedown(MakefilePackage, CudaPackage):
    """Benchmarks for acceptance and tuning of GPU nodes in data-parallel training."""

    homepage = "https://example.org/shakedown"
    url = "file:///path/to/shakedown-0.2.0.tar.gz"

    license("MIT")

    version("main")
    version("0.2.0")

    variant("cuda", default=True, description="GPUs, by CUDA, cuDNN and NCCL")
    variant("onednn", default=True, description="CPUs, by oneDNN")
    variant("report", default=True, description="Plots of reports")
    conflicts("~cuda~onednn", msg="one of +cuda and +onednn is needed")

    depends_on("cxx", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("openmpi@4.1:5.0")  # what was run: docs/install.md
    depends_on("python@3.9:", type=("build", "run"))
    depends_on("py-matplotlib", type="run", when="+report")
    depends_on("fmt")
    depends_on("nlohmann-json")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    depends_on("onednn@2", when="+onednn")
    depends_on("cuda@12:", when="+cuda")
    depends_on("cudnn@9:", when="+cuda")
    depends_on("nccl", when="+cuda")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs: cuda_arch=90 (H100, H200), 80 (A100), ...")
    for arch in CudaPackage.cuda_arch_values:  # NCCL's own recipe has no default
        depends_on(f"nccl cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")

    def setup_build_environment(self, env):
        spec = self.spec
        env.set("BACKENDS", " ".join(
            ["cpu"] * ("+onednn" in spec) + ["gpu"] * ("+cuda" in spec)))
        env.set("MPICXX", spec["mpi"].mpicxx)
        if "+onednn" in spec:
            env.set("DNNL_HOME", spec["onednn"].prefix)
        if "+cuda" in spec:
            for name in ("cuda", "cudnn", "nccl"):
                env.set(f"{name.upper()}_HOME", spec[name].prefix)
            archs = [arch for arch in spec.variants["cuda_arch"].value if arch != "none"]
            if archs:
                env.set("CUDA_ARCHS", " ".join(archs))

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}")
