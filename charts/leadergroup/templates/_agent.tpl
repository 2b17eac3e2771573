{{/*
What the two policies of agent-injection.yaml have in common: which pods they concern, and what they read of them.
*/}}
{{- define "leadergroup.agent.image" -}}
{{- with .Values.agent.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "leadergroup.agent.match" -}}
matchConstraints:
  objectSelector:
    matchExpressions:
      - key: leadergroup.dev/agent
        operator: Exists
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
{{- end -}}

{{- define "leadergroup.agent.variables" -}}
- name: group
  expression: object.metadata.labels['leadergroup.dev/agent']
- name: annotations
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
- name: all
  expression: "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
- name: agents
  expression: >-
    object.spec.containers.filter(c, has(c.command) && c.command.size() > 0
    && c.command[0].endsWith('/leadergroup-agent'))
- name: isThere
  expression: variables.agents.size() > 0
- name: chosen
  expression: "variables.annotations[?'leadergroup.dev/agent-container'].orValue(object.spec.containers[0].name)"
- name: index
  expression: object.spec.containers.map(c, c.name).indexOf(variables.chosen)
# One container, or none.
- name: main
  expression: object.spec.containers.filter(c, c.name == variables.chosen)
- name: ports
  expression: "variables.main.exists(c, has(c.ports)) ? variables.main[0].ports : []"
- name: probe
  expression: variables.main.filter(c, has(c.readinessProbe)).map(c, c.readinessProbe)
# The URL by which the agent asks the program, if it does; without a port if the probe names an unknown one.
- name: ready
  expression: >-
    'leadergroup.dev/agent-ready' in variables.annotations ? [variables.annotations['leadergroup.dev/agent-ready']]
    : variables.probe.filter(p, has(p.httpGet)).map(p, 'http://:' + (type(p.httpGet.port) == int
    ? string(p.httpGet.port) : variables.ports.filter(port, has(port.name) && port.name == string(p.httpGet.port))
    .map(port, string(port.containerPort)).join('')) + (has(p.httpGet.path)
    ? (p.httpGet.path.startsWith('/') ? '' : '/') + p.httpGet.path : '/'))
    + variables.probe.filter(p, has(p.tcpSocket)).map(p, 'tcp://:' + (type(p.tcpSocket.port) == int
    ? string(p.tcpSocket.port) : variables.ports.filter(port, has(port.name)
    && port.name == string(p.tcpSocket.port)).map(port, string(port.containerPort)).join('')))
- name: gates
  expression: "has(object.spec.schedulingGates) ? object.spec.schedulingGates.map(g, g.name) : []"
- name: stopTimeout
  expression: >-
    'leadergroup.dev/agent-stop-timeout' in variables.annotations
    ? [variables.annotations['leadergroup.dev/agent-stop-timeout']] : []
- name: problems
  expression: >-
    (variables.main.size() == 1 ? [] : ['it has no container named ' + variables.chosen])
    + (variables.main.all(c, has(c.command) && c.command.size() > 0) ? []
    : ['container ' + variables.chosen + ' has no command, and the entrypoint of its image is not known here: write it as '
    + '`command` (`skopeo inspect --config docker://IMAGE` shows Entrypoint and Cmd)'])
    + (has(object.spec.shareProcessNamespace) && object.spec.shareProcessNamespace
    || has(object.spec.hostPID) && object.spec.hostPID ? ['shareProcessNamespace and hostPID: the agent is process 1 of '
    + 'its container, so that it can kill what the program leaves behind; remove them'] : [])
    + (has(object.spec.volumes) && object.spec.volumes.exists(v, v.name == 'agent')
    || variables.all.exists(c, c.name == 'agent')
    || variables.ports.exists(port, has(port.name) && port.name == 'agent')
    || variables.main.exists(c, has(c.volumeMounts)
    && c.volumeMounts.exists(mount, mount.mountPath.matches('^/agent/*$')))
    ? ['the name `agent` of a container, a volume or a port, or the path /agent, is taken: rename the other one'] : [])
    + (variables.all.exists(c, has(c.ports) && c.ports.exists(port, port.containerPort == 9470))
    ? ['port 9470 is taken: use another port'] : [])
    + (variables.main.exists(c, has(c.env) && c.env.exists(e, e.name == 'LEADERGROUP_POD'))
    ? ['it sets LEADERGROUP_POD: remove it; the agent needs the name of the pod there'] : [])
    + (variables.main.exists(c, has(c.livenessProbe) && !has(c.livenessProbe.exec)
    || has(c.startupProbe) && !has(c.startupProbe.exec))
    ? ['the livenessProbe and the startupProbe ask the program, which runs in the active pod only, so every standby would '
    + 'be restarted: remove them, or make them exec probes that succeed while the program does not run'] : [])
    + (!('leadergroup.dev/agent-ready' in variables.annotations) && variables.probe.exists(p, has(p.exec) || has(p.grpc)
    || has(p.httpGet) && (has(p.httpGet.scheme) && p.httpGet.scheme != 'HTTP' || has(p.httpGet.host) && p.httpGet.host != ''
    || has(p.httpGet.httpHeaders) && p.httpGet.httpHeaders.size() > 0)
    || has(p.tcpSocket) && has(p.tcpSocket.host) && p.tcpSocket.host != '')
    || variables.ready.exists(url, !url.matches('^(http://:[1-9][0-9]{0,4}(/[!-~]*)?|tcp://:[1-9][0-9]{0,4})$'))
    ? ['the agent cannot ask as its readinessProbe does: say how in the annotation leadergroup.dev/agent-ready, with '
    + 'http://:PORT/PATH or tcp://:PORT'] : [])
    + (variables.stopTimeout.exists(seconds, !seconds.matches('^[0-9]{1,9}$'))
    ? ['the annotation leadergroup.dev/agent-stop-timeout is no number of seconds'] : [])
    + (variables.stopTimeout.all(seconds, seconds.matches('^[0-9]{1,9}$')) && object.spec.terminationGracePeriodSeconds
    <= (variables.stopTimeout.size() == 1 ? int(variables.stopTimeout[0]) : 25)
    ? ['terminationGracePeriodSeconds is ' + string(object.spec.terminationGracePeriodSeconds) + ', and the program has '
    + (variables.stopTimeout.size() == 1 ? variables.stopTimeout[0] : '25') + ' s to end: the kubelet would kill the agent '
    + 'first. Let it be at least 5 s longer'] : [])
{{- end -}}
