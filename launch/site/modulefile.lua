-- Lmod module of Shakedown; make install fills in the places. Use it from where it is installed:
--   module use PREFIX/share/shakedown/modulefiles
help([[Benchmarks for acceptance and tuning of GPU nodes in data-parallel training.
shakedown --help lists the commands; results go to runs/ of the current folder, or to SHAKEDOWN_RUNS.]])
whatis("Name: shakedown")
whatis("Version: @VERSION@")
whatis("Description: data-parallel training benchmarks for GPU nodes")
conflict("shakedown")
-- The Open MPI that Shakedown was built with, for example: depends_on("openmpi/4.1.6")
prepend_path("PATH", "@BIN@")
prepend_path("MANPATH", "@MAN@")
