conclude(
    [
        path
        for path in """
        /var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock
        /run/podman/podman.sock /run/crio/crio.sock /run/systemd/private
        /run/dbus/system_bus_socket /run/snapd.socket
        /var/run/secrets/kubernetes.io /root/.ssh /root/.aws /root/.docker/config.json /root/.kube
        /root/.netrc /root/.config/gcloud
        """.split()
        if os.path.lexists(path) and os.access(path, os.R_OK)
    ]
)
