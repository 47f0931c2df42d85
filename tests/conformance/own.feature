Feature: Steps that no scenario of the kit uses

  Scenario: Tasks that complete and fault
    Given a workflow with definition:
    """yaml
    document:
      dsl: '1.0.3'
      namespace: own
      name: tasks-that-fault
      version: '1.0.0'
    do:
      - greet:
          set:
            greeting: ${ "Hello \(.name)" }
      - complain:
          raise:
            error:
              status: 400
              type: https://example.com/errors/complaint
              title: Complaint
    """
    And given the workflow input is:
    """yaml
    name: Ada
    """
    When the workflow is executed
    Then the workflow should fault
    And greet should complete with output:
    """yaml
    greeting: Hello Ada
    """
    And complain should fault with error:
    """yaml
    status: 400
    type: https://example.com/errors/complaint
    title: Complaint
    instance: /do/1/complain
    """
    And greet should run before complain

  Scenario: Tasks that are cancelled
    Given a workflow with definition:
    """yaml
    document:
      dsl: '1.0.3'
      namespace: own
      name: tasks-that-are-cancelled
      version: '1.0.0'
    do:
      - race:
          fork:
            compete: true
            branches:
              - sleep:
                  wait: PT1H
              - win:
                  set:
                    winner: true
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    winner: true
    """
    And sleep should cancel
    And win should complete
