# SPDX-License-Identifier: Apache-2.0
# Installs what names its own places or those of its system. Run by `cmake --install` and CPack after: source, root, described, work,
# version, maintainer, codename are set.
set(prefix "${CMAKE_INSTALL_PREFIX}")
if(prefix MATCHES "/_CPack_Packages/")
  set(prefix /usr/local)  # of the .tar.gz, which is moved to where it is used
endif()
set(sysconfdir "${prefix}/etc")
set(zsh share/zsh/site-functions)
set(etc "${CMAKE_INSTALL_PREFIX}/etc")
if(prefix STREQUAL "/usr")
  set(sysconfdir /etc)
  set(zsh share/zsh/vendor-completions)
  set(etc /etc)
endif()
set(datadir "${prefix}/share")

configure_file("${source}/lintel.service.in" "${work}/lintel.service" @ONLY)
configure_file("${source}/lintel.toml.in" "${work}/lintel.toml" @ONLY)
# $ENV{DESTDIR} is put before by file(INSTALL).
file(INSTALL "${work}/lintel.service" DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/systemd/system")
file(GLOB completions "${described}/zsh/*")
file(INSTALL ${completions} DESTINATION "${CMAKE_INSTALL_PREFIX}/${zsh}")
if(NOT EXISTS "$ENV{DESTDIR}${etc}/lintel/lintel.toml")  # which is the operator's
  file(INSTALL "${work}/lintel.toml" DESTINATION "${etc}/lintel")
endif()

set(doc "${CMAKE_INSTALL_PREFIX}/share/doc/lintel")
if(prefix STREQUAL "/usr")
  # The notices as Debian wants them.
  file(READ "${root}/NOTICE" notice)
  string(REGEX REPLACE "\n\n" "\n.\n" notice "${notice}")
  string(REGEX REPLACE "(^|\n)([^\n])" "\\1 \\2" NOTICE "${notice}")
  configure_file("${source}/copyright.in" "${work}/copyright" @ONLY)
  file(STRINGS "${root}/CHANGELOG.md" released REGEX "^## \\[${version}\\] - ")
  string(REGEX REPLACE ".* - " "" day "${released}")
  execute_process(COMMAND date -R -u -d "${day}" OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(WRITE "${work}/changelog" "lintel (${version}) ${codename}; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- ${maintainer}  ${date}\n")
  execute_process(COMMAND gzip -9nf "${work}/changelog")
  execute_process(COMMAND gzip -9nc "${root}/CHANGELOG.md" OUTPUT_FILE "${work}/CHANGELOG.md.gz")
  file(INSTALL "${work}/copyright" "${work}/changelog.gz" "${work}/CHANGELOG.md.gz" DESTINATION "${doc}")
else()
  file(INSTALL "${root}/LICENSE" "${root}/CHANGELOG.md" DESTINATION "${doc}")
endif()
